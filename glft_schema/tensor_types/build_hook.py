"""Hatchling build hook: compiles the decoders and encoders of tensor types.

A wheel holds libraries for this machine, or for ``$GLFT_TARGET``, a key of `building.TARGETS`. An
editable installation has them in the source tree. If they cannot be compiled for this machine, the
package is installed without them, and decoding and encoding are slower.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "GLFT_TARGET"  # the environment variable
ZIG = "ziglang==0.17.1"  # equal versions compile equal bytes


class BuildHook(BuildHookInterface[Any]):
    """See hatchling's documentation of custom build hooks."""

    def dependencies(self) -> list[str]:
        """Returns a compiler to install for the build, if one is needed."""
        self._import_package()
        from glft_schema.tensor_types.library.building import compiler

        return [ZIG] if os.environ.get(TARGET) or compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._import_package()
        from glft_schema.tensor_types.compiling import build_library
        from glft_schema.tensor_types.library.building import TARGETS, BuildError
        from glft_schema.tensor_types.library.loading import FOLDER

        target = os.environ.get(TARGET, "")
        if version == "editable" and target:
            sys.exit(f"{TARGET} is for wheels: an editable installation is for this machine")
        if version == "editable":
            self._temporary, folder = None, FOLDER
        else:
            self._temporary = tempfile.TemporaryDirectory()
            folder = Path(self._temporary.name)
        try:
            build_library(folder, target)
        except (BuildError, OSError) as error:
            if target:
                sys.exit(f"{TARGET}={target}: {error}")
            print(f"glft_schema is installed without compiled functions, which are faster: {error}", file=sys.stderr)
            return
        if version != "editable":
            platform = TARGETS[target].tag if target else sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"
            inside = FOLDER.relative_to(self.root)
            build_data["force_include"].update({str(path): str(inside / path.name) for path in folder.iterdir()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._temporary:
            self._temporary.cleanup()

    def _import_package(self) -> None:
        """Makes `import glft_schema` import the package in the source tree."""
        sys.path.insert(0, self.root)
