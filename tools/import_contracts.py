"""A contract for import-linter: purity is the default, and the contract lists the shells."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PureContract(Contract):
    """Modules in `rooms` import neither `forbidden_modules` nor a shell, unless they are shells themselves."""

    type_name = "pure"

    rooms = fields.ListField(subfield=fields.StringField())
    shells = fields.SetField(subfield=fields.StringField())
    forbidden_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        rooms: list[str] = self.rooms  # type: ignore[assignment]
        shells: set[str] = self.shells  # type: ignore[assignment]
        forbidden: set[str] = self.forbidden_modules  # type: ignore[assignment]
        modules = {module for room in rooms for module in (room, *graph.find_descendants(room))}
        impure = {
            f"{module} imports {found}"
            for module in modules - shells
            for found in graph.find_modules_directly_imported_by(module) & (forbidden | shells)
        }
        unneeded = {
            f"{shell} is not a shell: it imports nothing that needs one"
            for shell in shells
            if shell not in modules or not graph.find_modules_directly_imported_by(shell) & (forbidden | shells)
        }
        return ContractCheck(kept=not impure | unneeded, metadata={"problems": sorted(impure | unneeded)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(problem)
