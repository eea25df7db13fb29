"""`fusebench info`: versions, the machine, and which implementations can run here, or why not."""

from __future__ import annotations

import json as json_module
import textwrap
from typing import Any

import click

from fusebench.bench.environment import environment
from fusebench.ops import OPS, registry
from fusebench.studies import options


def info() -> dict[str, Any]:
    """The environment, and every implementation with the reason why it cannot run, or None."""
    found = []
    for op in OPS:
        for name in registry.names(op):
            i = registry.get(op, name)
            found.append(
                {
                    "op": op,
                    "impl": name,
                    "devices": list(i.devices),
                    "dtypes": [str(d).removeprefix("torch.") for d in i.dtypes],
                    "backward": i.backward,
                    "source": i.source,
                    "timed": i.timed,
                    "unavailable": i.unavailable(),
                }
            )
    return {"schema": 1, "environment": environment(), "implementations": found}


def text(facts: dict[str, Any]) -> str:
    """The same for people."""
    env = facts["environment"]
    build = env["build"] or {}
    lines = [
        f"fusebench {env['fusebench']}  torch {env['torch']}  triton {env['triton']}  "
        f"python {env['python']}",
        f"processor  {env['cpu']}, {env['cpu_count']} cores, {env['cpu_capability']} in torch",
        f"threads    {env['threads']}    load {' '.join(map(str, env['load']))}",
    ]
    gpus = [f"{g['name']} (sm_{g['capability'].replace('.', '')})" for g in env["gpus"]]
    lines.append(f"GPUs       {', '.join(gpus) or 'none'}")
    if build:
        lines += [f"{name:<22} {_shown(value)}" for name, value in build.items() if value != ""]
    else:
        lines.append("build      fusebench._C is not built: pip install .")
    lines.append("")
    for op in OPS:
        lines.append(op)
        for i in facts["implementations"]:
            if i["op"] != op:
                continue
            state = i["unavailable"] or f"{', '.join(i['devices'])}; {', '.join(i['dtypes'])}"
            mark = "no " if i["unavailable"] else "yes"
            lines += textwrap.wrap(
                f"  {i['impl']:<15} {mark}  {state}", 100, subsequent_indent=" " * 23
            )
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@click.command("info")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@options.with_files
def command(as_json: bool) -> int:
    """Versions, the machine, and which implementations can run here, or why not."""
    facts = info()
    click.echo(json_module.dumps(facts, indent=1) if as_json else text(facts))
    return 0
