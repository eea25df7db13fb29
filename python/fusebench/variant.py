"""The PLAN@MODE grammar: which implementation each site uses, and how the model is compiled.

VARIANT = PLAN @ MODE                 cpp@default, sdpa=cuda,swiglu_ffn=triton-norm@eager
PLAN    = CHOICE                      one choice for every site that has it, else reference
        | SITE=CHOICE, …              the rest is reference
        | CHOICE, SITE=CHOICE, …      the rest is the first
        | FILE.toml                   a plan that `fusebench choose` wrote
CHOICE  = IMPLEMENTATION[-PART…]      -norm, -rope or -residual: left outside the op
MODE    = eager | default | reduce-overhead | max-autotune | max-autotune-no-cudagraphs
          [+freezing] [+dynamic]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fusebench.ops import checks, registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITES = {
    "embedding": "embedding",
    "qkv_proj": "qkv_proj",
    "sdpa": "sdpa",
    "out_proj": "linear",
    "swiglu_ffn": "swiglu_ffn",
    "lm_head": "linear",
    "loss": "linear_cross_entropy",
}
PARTS = {
    "qkv_proj": ("norm", "rope"),
    "out_proj": ("residual",),
    "swiglu_ffn": ("norm", "residual"),
    "lm_head": ("norm",),
}
MODES = ("eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SUFFIXES = ("freezing", "dynamic")


@dataclass(frozen=True)
class Choice:
    """What one site uses: an implementation, and the parts of the fusion left outside the op."""

    impl: str = "reference"
    outside: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "-".join((self.impl, *sorted(self.outside)))


@dataclass(frozen=True)
class Plan:
    """A choice for every site. `text` is how the user wrote it."""

    sites: Mapping[str, Choice] = field(default_factory=dict)
    text: str = "reference"

    def __getitem__(self, site: str) -> Choice:
        return self.sites.get(site, Choice())

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def implementations(self) -> list[registry.Implementation]:
        """What the plan uses besides the reference, without repeats."""
        used = {(SITES[s], c.impl): None for s, c in self.sites.items() if c.impl != "reference"}
        return [registry.get(op, impl) for op, impl in used]

    @classmethod
    def of(cls, choices: Mapping[str, str]) -> Plan:
        """The plan with these choices, the rest reference, under its shortest name."""
        plan = cls.parse(",".join(f"{s}={c}" for s, c in choices.items()) or "reference")
        for choice in set(choices.values()):
            left_out = [site for site in cls.parse(choice).sites if site not in choices]
            other = cls.parse(",".join([choice, *(f"{site}=reference" for site in left_out)]))
            if len(other.text) < len(plan.text) and all(plan[s] == other[s] for s in SITES):
                plan = other
        return plan

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read PLAN; ValueError with the nearest valid name for a site, part or implementation.

        One choice for every site (`cpp`) applies where that implementation exists, and leaves
        the other sites `reference`; parts then apply to the sites that have them.
        A name that ends in .toml is a plan file, as `fusebench choose` writes them.
        """
        text = text.strip()
        if text.endswith(".toml"):
            return read_plan(text)[0]
        if not text:
            raise checks.refuse("plan", "the text", "is empty", "IMPLEMENTATION or SITE=CHOICE,…")
        first, *rest = text.split(",")
        everywhere = "=" not in first
        sites = _everywhere(first.strip()) if everywhere else {}
        named: set[str] = set()
        for item in rest if everywhere else (first, *rest):
            site, equals, choice = (part.strip() for part in item.partition("="))
            if not equals:
                raise checks.refuse("plan", f"{item!r}", "has no '='", "SITE=IMPLEMENTATION")
            if site not in SITES:
                raise checks.unknown("site", site, SITES, "plan")
            if site in named:
                raise checks.refuse("plan", site, "is given twice", "one choice a site")
            named.add(site)
            sites[site] = _choice(site, choice)
        return cls(sites, text)


def read_plan(path: str | Path) -> tuple[Plan, Mode]:
    """A plan file: its plan and the mode it was chosen for.

    ValueError for a file that is not there or not a plan, or a choice that does not exist.
    """
    try:
        data = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise checks.refuse("plan", "FILE", f"is {str(path)!r}, not a file", "a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"plan: {path} is not TOML ({error})") from None
    sites = data.get("sites")
    if data.get("schema") != 1 or not isinstance(sites, dict):
        raise checks.refuse("plan", str(path), "is not a plan", "schema = 1 and a table [sites]")
    mode = data.get("mode", "eager")
    for name, value in (*sites.items(), ("mode", mode)):
        if not isinstance(value, str):
            raise checks.refuse("plan", f"{name} of {path}", f"is {value!r}", "a name in quotes")
    used = {site: choice for site, choice in sites.items() if choice != "reference"}
    try:
        return Plan.of(used), Mode.parse(mode)
    except ValueError as error:
        raise ValueError(f"{error}, in {path}") from None


def _choice(site: str, text: str) -> Choice:
    impl, *parts = text.split("-")
    registry.get(SITES[site], impl)
    for part in parts:
        if part not in PARTS.get(site, ()):
            raise checks.unknown("part", part, PARTS.get(site, ("(none)",)), site)
    return Choice(impl, frozenset(parts))


def _everywhere(text: str) -> dict[str, Choice]:
    impl, *parts = text.split("-")
    serves = {s: impl in registry.names(op) for s, op in SITES.items()}
    if not any(serves.values()):
        known = {i.name for i in registry.IMPLEMENTATIONS.values()}
        raise checks.unknown("implementation", impl, known, "plan")
    all_parts = {p for site in PARTS.values() for p in site}
    for part in parts:
        if part not in all_parts:
            raise checks.unknown("part", part, all_parts, "plan")
    return {
        site: Choice(impl, frozenset(parts) & frozenset(PARTS.get(site, ())))
        for site, there in serves.items()
        if there
    }


@dataclass(frozen=True)
class Mode:
    """`eager`, or a torch.compile mode; freezing: weights are constants; dynamic: sizes are not."""

    name: str = "eager"
    freezing: bool = False
    dynamic: bool = False

    def __str__(self) -> str:
        return self.name + "+freezing" * self.freezing + "+dynamic" * self.dynamic

    @property
    def compiled(self) -> bool:
        return self.name != "eager"

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Read MODE; ValueError with the nearest valid name."""
        name, *suffixes = text.strip().split("+")
        if name not in MODES:
            raise checks.unknown("mode", name, MODES)
        for suffix in suffixes:
            if suffix not in SUFFIXES:
                raise checks.unknown("mode suffix", suffix, SUFFIXES)
        if len(set(suffixes)) != len(suffixes):
            raise checks.refuse("mode", text, "repeats a suffix", "each suffix once")
        if name == "eager" and suffixes:
            raise checks.refuse("mode", f"+{suffixes[0]}", "follows eager", "a compiled mode")
        return cls(name, "freezing" in suffixes, "dynamic" in suffixes)


@dataclass(frozen=True)
class Variant:
    """One contestant: a plan under a mode."""

    plan: Plan
    mode: Mode

    def __str__(self) -> str:
        return f"{self.plan}@{self.mode}"

    @property
    def inductor(self) -> bool:
        """Whether this is Inductor's own work: a compiled plan that is all reference."""
        return self.mode.compiled and not self.plan.implementations()

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read PLAN@MODE; ValueError that names the part that is wrong."""
        plan, at, mode = text.partition("@")
        if not at or "@" in mode:
            raise checks.refuse(
                "variant", f"{text!r}", "is malformed", "PLAN@MODE, like cpp@default"
            )
        return cls(Plan.parse(plan), Mode.parse(mode))
