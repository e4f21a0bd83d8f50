"""The suite for commands of the program ``dpspec``."""

from __future__ import annotations

from typing import ClassVar

from dpspec.contract.commands import OWN_COMMANDS, Command
from dpspec.testing.provider import ProviderSuite, require


class CommandSuite(ProviderSuite):
    """Subclass it and set ``kind`` to the name of the command."""

    family: ClassVar[str] = "command"

    def test_it_replaces_no_command_of_dpspec(self) -> None:
        """Its name is not the name of one of dpspec's own commands, which every user expects to stay the same."""
        names = [command.name for command in OWN_COMMANDS]
        require(self.kind not in names, f"dpspec has a command {self.kind!r}: choose another name")

    def test_its_help_text_can_be_printed(self) -> None:
        """Typer can read all parameters, and ``--help`` prints a text without running the command."""
        import typer
        from typer.testing import CliRunner

        command: Command = self.provider()
        code = self.code()
        if not isinstance(code, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(command.name)(code)
            code = app
        called = f"`dpspec {command.name} --help`"
        try:
            help_text = typer.main.get_command(code).help
        except Exception as error:
            raise AssertionError(f"{called} fails: typer cannot read the parameters: {error}") from error
        require(help_text, f"{called} describes nothing: write a docstring")
        shown = CliRunner().invoke(code, ["--help"])
        require(shown.exit_code == 0, f"{called} ends with {shown.exit_code}: {shown.exception!r}")
