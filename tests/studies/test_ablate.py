"""`fusebench ablate` and `choose`: designs, effects from known times, and plans on file."""

import itertools

import numpy as np
import pytest

from fusebench.bench.measure import Measurement, Race
from fusebench.bench.workload import Workload
from fusebench.model import GPT, GPTConfig
from fusebench.ops import registry
from fusebench.studies import ablate as study
from fusebench.studies import choose as choosing
from fusebench.studies import compare
from fusebench.variant import Mode, Plan, read_plan, tomllib

TINY = GPTConfig(vocab_size=64, n_embed=32, num_heads=2, num_layers=1, max_seq_len=32)
MODE = Mode()
HAS_CPP = registry.get("sdpa", "cpp").unavailable()
needs_cpp = pytest.mark.skipif(HAS_CPP is not None, reason=f"no cpp: {HAS_CPP}")


def race_of(times):
    """A race in which every variant took these milliseconds, with 1% of noise."""
    measurements = []
    for seed, (name, ms) in enumerate(times.items()):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.01, 50))
        samples = list(ms * 1e-3 * noise)
        measurements.append(Measurement(name, verified=True, samples=samples))
    return Race(measurements)


def rows(design, times, sites):
    effects = list(study.DESIGN[design]("cpp", sites, MODE))
    assert {name for e in effects for name in e.weights} == set(times)
    return {r["effect"]: r for r in (study.effect_row(e, race_of(times)) for e in effects)}


def name(*sites):
    return str(study.plan_variant({s: "cpp" for s in sites}, MODE))


def test_one_in():
    times = {name(): 10, name("sdpa"): 8, name("lm_head"): 11, name("sdpa", "lm_head"): 8.9}
    found = rows("one-in", times, ["sdpa", "lm_head"])
    assert found["sdpa"]["verdict"] == "keep"
    assert found["sdpa"]["contribution"]["value"] == pytest.approx(10 / 8, rel=0.02)
    assert found["sdpa"]["saved_ms"] == pytest.approx(2, abs=0.2)
    assert found["lm_head"]["verdict"] == "leave to Inductor"
    assert found["all of them"]["contribution"]["value"] == pytest.approx(10 / 8.9, rel=0.02)


def test_leave_one_out():
    times = {name("sdpa", "lm_head"): 8, name("lm_head"): 8.02, name("sdpa"): 10, name(): 10}
    found = rows("leave-one-out", times, ["sdpa", "lm_head"])
    assert found["sdpa"]["verdict"] == "no difference"
    assert found["lm_head"]["verdict"] == "keep"


def test_factorial_separates_effects_from_interactions():
    sites = ["qkv_proj", "sdpa", "lm_head"]
    times = {}
    for on in itertools.product((0, 1), repeat=3):
        # qkv_proj: 2x alone; sdpa: nothing alone, 1.5x beside qkv_proj; lm_head: 0.8x always.
        factor = 2 ** on[0] * 1.5 ** (on[0] * on[1]) * 0.8 ** on[2]
        times[name(*(s for s, there in zip(sites, on) if there))] = 12 / factor
    found = rows("factorial", times, sites)
    value = {effect: row["contribution"]["value"] for effect, row in found.items()}
    assert value["qkv_proj"] == pytest.approx(2 * 1.5**0.5, rel=0.02)
    assert value["sdpa"] == pytest.approx(1.5**0.5, rel=0.02)
    assert value["lm_head"] == pytest.approx(0.8, rel=0.02)
    assert value["qkv_proj x sdpa"] == pytest.approx(1.5, rel=0.03)
    assert value["qkv_proj x lm_head"] == pytest.approx(1, rel=0.03)
    assert found["qkv_proj x sdpa"]["verdict"] == "help each other"
    assert found["lm_head"]["verdict"] == "leave to Inductor"


def test_an_effect_of_a_failed_variant_is_not_measured():
    race = race_of({name(): 10, name("sdpa"): 5})
    race.measurements[1].fail("wrong")
    (effect,) = study.one_in("cpp", ["sdpa"], MODE)
    row = study.effect_row(effect, race)
    assert row["contribution"] is None and row["verdict"] == "not measured"


def test_plans_get_their_shortest_name():
    all_sites = list(Plan.parse("cpp").sites)
    assert name(*all_sites) == "cpp@eager"
    assert name(*all_sites[1:]) == f"cpp,{all_sites[0]}=reference@eager"
    assert name("sdpa") == "sdpa=cpp@eager"
    assert name() == "reference@eager"
    for chosen in ((), ("sdpa",), all_sites[1:], all_sites[:3], all_sites):
        plan = Plan.parse(name(*chosen).split("@")[0])
        assert [s for s in all_sites if plan[s].impl == "cpp"] == [
            s for s in all_sites if s in chosen
        ]


def test_widths_take_each_part_out():
    found = {e.name: e for e in study.width_effects("cpp", ["qkv_proj", "sdpa", "out_proj"], MODE)}
    assert set(found) == {"norm in qkv_proj", "rope in qkv_proj", "residual in out_proj"}
    assert found["norm in qkv_proj"].over == "qkv_proj=cpp-norm@eager"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"design": "all"}, "unknown design 'all'"),
        ({"impl": "cpu"}, "unknown implementation 'cpu'; did you mean 'cpp'"),
        ({"at": ["sdap"]}, "unknown site 'sdap'; did you mean 'sdpa'"),
        ({"mode": "quick"}, "unknown mode 'quick'"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        study.ablate(**{"impl": "cpp", "config": TINY, "seq": 8, **settings})


@needs_cpp
def test_too_many_factors():
    with pytest.raises(ValueError, match="at most 5 for a factorial"):
        study.ablate("cpp", design="factorial", config=TINY, seq=8)


@needs_cpp
def test_ablate_end_to_end():
    results = study.ablate(
        "cpp", mode="eager", at=["sdpa", "out_proj"], widths=True, config=TINY, seq=8, rounds=5
    )
    effects = [r for r in results.rows if "effect" in r]
    assert [r["effect"] for r in effects] == [
        "sdpa", "out_proj", "all of them", "residual in out_proj"
    ]  # fmt: skip
    assert all(r["contribution"] for r in effects)
    variants = [r for r in results.rows if "variant" in r]
    assert len(variants) == 5 and all(r["verified"] for r in variants)
    assert max(map(len, results.table().splitlines())) <= 100


@needs_cpp
def test_choose_writes_a_plan_that_compare_and_the_model_read(tmp_path):
    path = tmp_path / "best.toml"
    results = choosing.choose(mode="eager", config=TINY, model="tiny", seq=8, rounds=5, output=path)
    variants = [r for r in results.rows if "variant" in r]
    chosen = next(r for r in variants if r["plan"] == results.settings["plan"])
    # At least as fast as the best single plan of the race that decided.
    singles = [r["median_ms"] for r in variants if r["plan"] in registry.names("sdpa")]
    assert {"reference", "cpp"} <= {r["plan"] for r in variants}
    assert chosen["median_ms"] <= min(singles)
    assert all(len(r["samples_ms"]) == 2 * 5 for r in variants)
    plan, mode = read_plan(path)
    assert str(mode) == "eager"
    data = tomllib.loads(path.read_text())
    assert data["confirmed"] == {k: v for k, v in results.settings["confirmed"].items()}
    assert data["confirmed"]["best_single"] in {r["variant"] for r in variants}
    assert all(plan[s] == Plan.parse(chosen["plan"])[s] for s in choosing.sites.FORWARD)
    assert GPT(TINY, plan=str(path)).plan["sdpa"] == plan["sdpa"]
    assert str(plan) == chosen["plan"]  # its shortest name, as the study calls it
    results = compare.compare(
        ["reference@eager"], plans=[path], config=TINY, model="tiny", seq=8, rounds=5
    )
    assert len(results.rows) in (1, 2) and not results.failed


@pytest.mark.parametrize(
    "mixed, single, chosen, words",
    [
        (8.0, 10.0, "sdpa=cpp@eager", "confirmed 1.25"),
        (9.98, 10.0, "cpp@eager", "not surely faster"),  # a tie goes to the simpler plan
        (12.0, 10.0, "cpp@eager", "not surely faster"),
        (None, 10.0, "cpp@eager", "no other to confirm"),  # the mixed plan failed
        (8.0, None, "sdpa=cpp@eager", "confirmed"),  # cpp everywhere failed
    ],
)
def test_a_mixed_plan_is_chosen_only_where_it_beats_the_best_single_one(
    mixed, single, chosen, words
):
    race = race_of({name(): 12.5, "cpp@eager": single or 1, name("sdpa"): mixed or 1})
    for m, given in zip(race.measurements[1:], (single, mixed)):
        if given is None:
            m.fail("wrong")
    best, facts = choosing.confirm(name("sdpa"), (name(), "cpp@eager"), race)
    assert best.name == chosen and words in facts["why"]
    timed = {m.name: m.median for m in race.timed}
    assert timed[chosen] <= min(t for n, t in timed.items() if n != name("sdpa"))


def test_pick_takes_only_what_is_surely_faster():
    variants = {("sdpa", "cpp"): study.plan_variant({"sdpa": "cpp"}, MODE),
                ("out_proj", "cpp"): study.plan_variant({"out_proj": "cpp"}, MODE)}  # fmt: skip
    race = race_of({name(): 10, name("sdpa"): 9, name("out_proj"): 10.02})
    picked, reasons = choosing.pick(variants, race, study.plan_variant({}, MODE))
    assert picked == {"sdpa": "cpp"}
    assert [r["choice"] for r in reasons] == ["cpp", "reference"]
    assert reasons[0]["why"].startswith("faster: cpp 1.1")
    assert reasons[1]["why"].startswith("no difference: cpp 1.0")


@pytest.mark.parametrize(
    "text, message",
    [
        ("nonsense", "is not TOML"),
        ("schema = 2\n[sites]\n", "is not a plan"),
        ('schema = 1\n[sites]\nsdpa = "cppp"\n', "unknown implementation 'cppp'"),
        ('schema = 1\n[sites]\nspda = "cpp"\n', "unknown site 'spda'"),
    ],
)
def test_plan_files_that_are_wrong(tmp_path, text, message):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_plan(path)
    with pytest.raises(ValueError, match=message):
        GPT(TINY, plan=str(path))


def test_a_plan_file_that_is_not_there():
    with pytest.raises(ValueError, match="not a file"):
        Plan.parse("/no/such/plan.toml")


def test_candidates_are_what_can_run_here():
    workload = Workload("tiny", 1, 8, custom=TINY)
    if HAS_CPP:
        with pytest.raises(ValueError, match="cannot run here"):
            choosing.candidates(workload)
    else:
        assert ("sdpa", "cpp") in choosing.candidates(workload)
