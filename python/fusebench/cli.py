"""The command line: one thin command per study, each loaded when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import shlex
import sys
import traceback
from typing import Any

import click

from fusebench.ops import registry

# name -> module under fusebench that holds its click command as `command`, and a line of help.
COMMANDS = {
    "info": ("studies.info", "Versions, machine, and which implementations can run here."),
    "compare": ("studies.compare", "Race variants of a GPT: which is fastest, by how much?"),
    "op": ("studies.op", "Race implementations of one op, against the machine's limits."),
    "check": ("studies.check", "Verify implementations over a grid of shapes and options."),
    "machine": ("studies.machine", "Measure the ceilings of this machine."),
    "diff": ("studies.diff", "Compare two result files: regressions, with intervals."),
    "ablate": ("studies.ablate", "What each site's fused kernel contributes."),
    "explain": ("studies.explain", "Where a kernel's speed-up went in the model."),
    "choose": ("studies.choose", "Find the best plan and write it to a file."),
    "shapes": ("studies.shapes", "Sequence lengths: dynamic shapes, recompiles, crossovers."),
    "compile-cost": ("studies.compile_cost", "What compiling costs, cold and warm."),
    "bindings": ("studies.bindings", "What the way a kernel is bound to torch costs."),
    "inspect": ("studies.inspect", "What the compiler made of a variant."),
    "resources": ("studies.resources", "Registers, memory and spills of the GPU kernels."),
    "tune": ("studies.tune", "Search the parameters of a kernel."),
    "simulate": ("studies.simulate", "Run the CUDA kernels on the CPU, and count."),
    "report": ("studies.report", "One page of everything in result files."),
}


class Commands(click.Group):
    """Commands that are imported when used, and errors in one line with exit code 2."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if _exists(module)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(context):
            return None
        return importlib.import_module(f"fusebench.{COMMANDS[name][0]}").command

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        known = self.list_commands(context)
        if name not in known and not name.startswith("-"):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"unknown command {name!r}{hint} (known: {', '.join(known)})")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(n, COMMANDS[n][1]) for n in self.list_commands(context)])


def _exists(module: str) -> bool:
    return importlib.util.find_spec(f"fusebench.{module}") is not None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fusebench", message="fusebench %(version)s")
def cli() -> None:
    """Handwritten fused kernels against torch.compile's, on the same GPT."""
    registry.load_entry_points()


def main(args: list[str] | None = None) -> None:
    """Run a command: exit code 0, 1 for failed rows, 2 for bad input, 130 when interrupted."""
    try:
        words = sys.argv[1:] if args is None else args
        code = cli.main(
            list(words), prog_name="fusebench", standalone_mode=False,
            obj=shlex.join(["fusebench", *words]),
        )  # fmt: skip
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _complain(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        print("fusebench: interrupted", file=sys.stderr)
        sys.exit(130)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        _complain(str(error))
    except BrokenPipeError:  # `fusebench … | head`
        sys.stderr.close()
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    """One line, exit code 2. FUSEBENCH_TRACEBACK=1 shows where it came from."""
    if os.environ.get("FUSEBENCH_TRACEBACK") == "1":
        traceback.print_exc()
    print(f"fusebench: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
