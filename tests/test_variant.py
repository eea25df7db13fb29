"""The PLAN@MODE grammar."""

import pytest

from fusebench import Plan, Variant
from fusebench.variant import SITES, Choice, Mode


def test_one_choice_serves_every_site_that_has_it():
    plan = Plan.parse("cpp")
    assert {s for s in SITES if plan[s].impl == "cpp"} == set(SITES) - {"loss"}
    assert plan["loss"] == Choice("reference")


def test_a_mixed_plan_leaves_the_rest_to_the_reference():
    variant = Variant.parse("sdpa=cpp, swiglu_ffn=cpp-norm-residual@max-autotune+freezing+dynamic")
    assert variant.plan["sdpa"] == Choice("cpp")
    assert variant.plan["swiglu_ffn"] == Choice("cpp", frozenset({"norm", "residual"}))
    assert variant.plan["qkv_proj"] == Choice("reference")
    assert variant.mode == Mode("max-autotune", freezing=True, dynamic=True)
    assert str(variant).endswith("@max-autotune+freezing+dynamic")


def test_only_a_compiled_reference_is_inductors_own_work():
    assert Variant.parse("reference@default").inductor
    assert not Variant.parse("reference@eager").inductor
    assert not Variant.parse("cpp@default").inductor


@pytest.mark.parametrize(
    "text, words",
    [
        ("cpp", ["'cpp' is malformed", "PLAN@MODE"]),
        ("a@b@c", ["malformed"]),
        ("@default", ["is empty"]),
        ("cpq@default", ["unknown implementation 'cpq'", "did you mean 'cpp'"]),
        ("cpp@defualt", ["unknown mode 'defualt'", "did you mean 'default'"]),
        ("cpp@default+freezng", ["unknown mode suffix 'freezng'", "'freezing'"]),
        ("cpp@default+dynamic+dynamic", ["repeats a suffix"]),
        ("cpp@eager+freezing", ["+freezing", "follows eager"]),
        ("sdap=cpp@default", ["unknown site 'sdap'", "did you mean 'sdpa'"]),
        ("sdpa=cpp,sdpa=cpp@eager", ["is given twice"]),
        ("sdpa=cpp,cpp@eager", ["has no '='"]),
        ("sdpa=cpq@eager", ["sdpa: unknown implementation 'cpq'"]),
        ("swiglu_ffn=cpp-rope@eager", ["swiglu_ffn: unknown part 'rope'"]),
        ("cpp-rop@eager", ["unknown part 'rop'", "did you mean 'rope'"]),
    ],
)
def test_a_malformed_variant_names_what_is_wrong(text, words):
    with pytest.raises(ValueError) as error:
        Variant.parse(text)
    for word in words:
        assert word in str(error.value)
