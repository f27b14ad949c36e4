"""`glft verify --strict`, a gate: the code is not 0 for what a scanner must not let pass."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.families import chat_templates
from glft_schema.formats.chat_templates import LONGEST
from tests.checks.tiny_llama import FLUX, KEYS, SHAPES, write
from tests.tools.command_line import in_this_process

KEY = "tokenizer.chat_template"
GOOD = "{% for m in messages %}{{ m['role'] + ': ' + m.content | trim }}\n{% endfor %}"
HOSTILE = (  # forms of published attacks on programs that render templates without a sandbox
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__()[0] }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__['os'].popen('id').read() }}",
    "{{ namespace.__init__.__globals__.os.system('id') }}",
    "{{ lipsum.__globals__['__builtins__']['eval']('1') }}",
    "{{ lipsum.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os') }}",
    "{{ range.__class__ }}",
    "{{ raise_exception.__globals__['sys'].modules }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ messages | attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ () | attr('_' ~ '_class_' ~ '_') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{% set x = cycler.__init__ %}{{ x.__globals__ }}",
    "{% if false %}{{ ''.__class__ }}{% endif %}",  # not reached by a trial
    "{% for c in [].__class__.__base__.__subclasses__() %}{% if 'a' in c.__name__ %}{{ c()._module }}{% endif %}{% endfor %}",
    "{% macro m() %}{{ m.__globals__ }}{% endmacro %}{{ m() }}",
    "{% if messages | length > 7 %}{{ lipsum['__glo' ~ 'bals__'].os.popen('id').read() }}{% endif %}",
    "{{ self['_TemplateReference__context'] }}",
    "{{ ''['_' * 2 ~ 'class' ~ '_' * 2] }}",
    "{% set name = '__cl' ~ 'ass__' %}{{ ''[name] }}",
    "{{ messages | map(attribute='__reduce_ex__') | list }}",
    "{{ messages | map(attribute=['_', '_class_', '_'] | join) | list }}",
    "{{ ''['%c%cclass%c%c' | format(95, 95, 95, 95)] }}",
    "{{ messages.gi_frame.f_globals }}",
    "{% include '/etc/passwd' %}",
    "{% extends 'base' %}",
    "{% import 'os' as os %}{{ os.x }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 'a' * 999999999 * 99 }}",
    "{% for i in range(999999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
)
RUN_ONLY = -3  # templates before it are found without a trial


def strict(path: object, *options: object) -> tuple[int, str]:
    result = in_this_process("verify", path, "--strict", *options)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("key", [KEY, f"{KEY}.tool_use"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_templates(text: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template of another name is not rendered, so that it is only searched."""
    monkeypatch.setattr(chat_templates, "SECONDS", 1)
    path = write(tmp_path / "model.gguf", {**KEYS, key: text})
    code, shown = strict(path)
    is_found = key == KEY or not HOSTILE[RUN_ONLY:].count(text)
    assert code == is_found
    assert ("[gguf-chat-" in shown) == is_found
    assert in_this_process("verify", path).returncode == 0  # llama.cpp loads the model


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({KEY: GOOD}, ""),
        ({KEY: GOOD, "general.type": "model"}, ""),
        ({KEY: GOOD + "{{ '<tool_call>' }}<__media__>{% set ns = namespace(x_y=1) %}{{ ns.x_y }}"}, ""),
        (
            {f"{KEY}s": glft.Typed([HOSTILE[0], *["x"] * 2000], "array[string]")},
            "expected no access to private attributes or other",
        ),
        ({"general.type": "adapter", "adapter.type": "lora"}, "adapter.lora.alpha"),
        ({KEY: "{{ messages | uper }}"}, "expected a filter of Jinja, found 'uper' at line 1"),
        ({KEY: "{{ f() }}"}, "expected a chat template that renders a conversation"),
        (
            {KEY: GOOD + " " * LONGEST},
            f"expected at most {LONGEST} characters of chat templates (longer ones are not checked)",
        ),
        (
            {f"{KEY}.{i}": GOOD + " " * (LONGEST // 4) for i in range(4)},
            "characters of chat templates (longer ones are not checked)",
        ),
        ({"general.type": "toy"}, "not checked, no rules for the role 'toy'"),
        (FLUX, "not checked, no rules for the architecture 'flux'"),
        ({"general.file_type": glft.Typed(7, "uint64")}, "expected uint32"),
    ],
)
def test_keys(keys: dict[str, Any], problem: str, tmp_path: Path) -> None:
    code, shown = strict(write(tmp_path / "model.gguf", keys if keys is FLUX else {**KEYS, **keys}))
    assert (code, problem in " ".join(shown.split())) == (bool(problem), True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values(value: float, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    stored = path.read_bytes()
    path.write_bytes(stored[:-4] + np.float32(value).tobytes())
    assert in_this_process("verify", path).returncode == 0
    code, shown = strict(path)
    assert (code, "1 with NaN, infinities or reserved codes" in shown) == (1, True)
    assert strict(path, "--exclude", list(SHAPES)[-1])[0] == 0


def test_types_that_cannot_be_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    with glft.open(path) as file:
        regions = {**file.regions, "metadata": {"general.architecture": "toy"}}
        regions["tensor_infos"] = [{"name": "w", "dims": [32], "dtype": 199}]
        glft.Container.build_file({**regions, "data": {"w": bytes(32)}}, tmp_path / "other.gguf")
    code, shown = strict(tmp_path / "other.gguf")
    assert (code, "0 of 1 tensors checked" in shown) == (1, True)


def test_pickles(tmp_path: Path) -> None:
    """They are refused before any of their objects is made."""
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "old.gguf", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.gguf").write_bytes(pickle.dumps({"w": 1}))
    for name in ("model.pt", "old.gguf", "plain.gguf"):
        code, shown = strict(tmp_path / name)
        assert (code, shown.startswith(f"glft: {tmp_path / name}: header -> magic: expected")) == (2, True)


def swap_names(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def swap_numbers(one: Path, other: Path) -> None:
    for path, old, new in ((one, 0, 1), (other, 1, 0)):
        key, stored = b"split.no" + struct.pack("<I", 2), path.read_bytes()  # uint16
        if key + struct.pack("<H", old) not in stored:  # the names are swapped, too
            old, new = new, old
        path.write_bytes(stored.replace(key + struct.pack("<H", old), key + struct.pack("<H", new)))


@pytest.mark.parametrize("swaps", [[swap_names], [swap_numbers], [swap_names, swap_numbers]])
def test_swapped_files_of_a_set(swaps: list[Any], tmp_path: Path) -> None:
    paths = [Path(path) for path in glft.split(write(tmp_path / "model.gguf"), tmp_path / "part", max_tensors=15)]
    assert (len(paths), strict(paths[0])[0]) == (2, 0)
    for swap in swaps:
        swap(*paths)
    assert all(strict(path)[0] for path in paths)


def test_options() -> None:
    result = in_this_process("verify", "x.gguf", "--strict", "--rules", "spec")
    assert result.returncode == 2


def test_the_hook_and_the_workflow_of_the_guide(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    page = (Path(__file__).parents[2] / "docs" / "guides" / "integrity.md").read_text("utf-8")
    hook, workflow = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (tmp_path / "models").mkdir()
    good, other = write(tmp_path / "models" / "good.gguf"), write(tmp_path / "models" / "an other.gguf")
    (hook,) = hook["repos"][0]["hooks"]
    assert re.search(hook["files"], str(good))
    (*_, find) = workflow["jobs"]["verify"]["steps"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for is_good in (True, False):
        for command in ([*shlex.split(hook["entry"]), str(other), str(good)], ["sh", "-c", find["run"]]):
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert (done.returncode == 0) == is_good, done.stderr
            assert all(path.name in done.stdout for path in (good, other))
        write(other, {**KEYS, KEY: HOSTILE[0]})
