"""Compiles the engine and the hardware model where an installation asks for it, and where it can."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILED = ("g10sim/hardware", "g10sim/sim")


class CompiledCore(BuildHookInterface[Any]):
    """Adds what mypyc makes of the core to the wheel, next to its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the core, or say in a line why it stays as it is."""
        compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
        header = Path(sysconfig.get_path("include"), "Python.h")
        if version == "editable" or compiler is None or not header.is_file():
            reason = "it follows the source" if version == "editable" else f"no C compiler with {header}"
            self.app.display_warning(f"g10sim stays plain Python: {reason}")
            return

        from mypyc.build import mypycify  # needed, and installed, only here
        from setuptools import Distribution
        from setuptools.command.build_ext import build_ext

        modules = [str(path) for folder in _COMPILED for path in sorted(Path(folder).rglob("*.py"))]
        arguments = ["--follow-imports=silent", "--ignore-missing-imports", *modules]
        extensions = mypycify(arguments, opt_level="1", debug_level="0")
        for extension in extensions:  # warnings about generated code help nobody, and take most of the time
            extension.extra_compile_args.append("-Wno-all")
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.ensure_finalized()
        command.run()
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for path in command.get_outputs():
            build_data["force_include"][path] = str(Path(path).relative_to(command.build_lib))
