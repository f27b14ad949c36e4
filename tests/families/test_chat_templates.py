"""Chat templates: syntax, names, and a trial rendering. Oracle: transformers' own environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glft_schema as glft
from glft_schema.checks.rule_sets import check_rules
from glft_schema.errors import FormatError
from glft_schema.families import chat_templates
from glft_schema.families.chat_templates import rendering_problem, unrendered
from glft_schema.formats.chat_templates import LONGEST, syntax_problem
from tests.tools.command_line import glft as glft_command
from tests.tools.command_line import in_this_process

KEY = "tokenizer.chat_template"
METADATA = {"general.architecture": "toy", KEY: "{{ messages[0].content }}"}
RENDERS = "expected a chat template that renders a conversation, found"
GOOD = [
    "{% for m in messages %}{{ bos_token + m['role'] + m.content | trim }}{{ eos_token }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
    "{{ messages | tojson(indent=2, ensure_ascii=True) }}{{ strftime_now('%Y') }}",
    "{% for m in messages %}{{ m.content[0].text + '\\n' }}{% endfor %}",  # a list of parts
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}",
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}assistant{% endif %}",
    "{{ raise_exception('expected a system message') }}",  # of this conversation
]
WRONG_SYNTAX = {
    "": "expected a chat template, found an empty text",
    " \n": "expected a chat template, found an empty text",
    "\n{% if x %}\n{{ x }": "expected valid Jinja, found an error at line 3: unexpected '}'",
    "\n{{ messages | uper }}": "expected a filter of Jinja, found 'uper' at line 2",
    "{% if tools %}{{ tools | tojsn }}{% endif %}": "expected a filter of Jinja, found 'tojsn' at line 1",  # not in the trial
    "{% if x is number %}{% elif x is any %}{% endif %}": "expected a test of Jinja, found 'any' at line 1",
    "{{ " + "1" * 4301 + " }}": "expected valid Jinja, found a number that Python cannot read: Exceeds the limit (4300 digits) "
    "for integer string conversion: value has 4301 digits; use sys.set_int_max_str_digits() to increase the limit",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "expected a chat template, found expressions that are nested too deeply",
}
WRONG = {
    "a\n{{ apply(messages) }}": f"{RENDERS} at line 2: 'apply' is undefined",
    "{{ messages[0].content.parts.text }}": f"{RENDERS} at line 1: 'str object' has no attribute 'parts'",
    "{{ 'a' + 1 }}": f'{RENDERS} at line 1: can only concatenate str (not "int") to str',
    "{% break %}": f"{RENDERS} 'break' outside loop",
    "{{ ''.__class__.__mro__ }}": f"{RENDERS} at line 1: access to attribute '__class__' of 'str' object is unsafe.",
    "{# a comment #}": f"{RENDERS} an empty text",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    glft.save_file({"w": torch.ones(2)}, tmp_path / "model.gguf", METADATA)
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("text", [*GOOD, *WRONG_SYNTAX, *WRONG])
def test_transformers_agrees(text: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    problem = syntax_problem(KEY, text) or rendering_problem(Path(), text)
    assert problem == (WRONG_SYNTAX | WRONG).get(text, "")
    if problem.endswith("an empty text") or "tojsn" in text or " is any" in text:  # not seen without a rendering of that branch
        return
    contents = ("Hello", [{"type": "text", "text": "Hello"}])
    try:
        render = utils._compile_jinja_template(text).render
        failures = 0
        for content in contents:
            try:
                render(messages=[{"role": "user", "content": content}], bos_token="<s>", eos_token="</s>", tools=None)
            except Exception as error:
                failures += "expected a system message" not in str(error)
    except Exception:
        failures = len(contents)
    assert (failures == len(contents)) == bool(problem)


def test_an_edit_sets_templates_that_render(model: Path) -> None:
    glft.edit(model, set={KEY: GOOD[0], f"{KEY}.tool_use": "{{ tools[0].name }}", "tokenizer.other": ""})
    before = model.read_bytes()
    for key, text in ((KEY, "{{ x | uper }}"), (f"{KEY}.rag", "{{ documents | uper }}")):
        with pytest.raises(FormatError) as caught:
            glft.edit(model, set={key: text})
        assert str(caught.value) == f"metadata -> {key}: expected a filter of Jinja, found 'uper' at line 1"
    assert model.read_bytes() == before


def test_an_edit_sets_a_template_that_renders_nothing(model: Path) -> None:
    done = glft_command("edit", model, "--set", f"{KEY}={{{{ f() }}}}")
    advice = "it is set nevertheless; try it with messages like those of your application"
    assert (done.returncode, done.stderr) == (0, f"glft: warning: {KEY}: {RENDERS} at line 1: 'f' is undefined: {advice}\n")
    with glft.open(model) as file:
        assert file.metadata[KEY] == "{{ f() }}"


def test_the_templates_of_a_file_have_a_total(model: Path) -> None:
    """Jinja parses some texts slowly, so the work on all templates of a file is limited."""
    count = LONGEST // 10_000
    texts = {f"{KEY}.t{i}": f"{{{{ x | uper{i} }}}}".ljust(10_000) for i in range(count + 3)}
    glft.save_file({}, model, METADATA | texts, rules=[])
    assert sum("uper" in finding.problem for finding in check_rules(model, "spec")) == count


def test_saving_refuses_what_is_not_jinja(tmp_path: Path) -> None:
    path, metadata = tmp_path / "model.gguf", METADATA | {KEY: "{{ x | uper }}"}
    with pytest.raises(FormatError) as caught:
        glft.save_file({}, path, metadata)
    problem = "expected a filter of Jinja, found 'uper' at line 1: rules=['ggml'] (--rules ggml) allows it"
    assert str(caught.value) == f"metadata -> 1 -> value: {problem}"
    assert caught.value.rule == "gguf-chat-template"
    for allowed in (metadata, METADATA | {KEY: glft.Typed([], "array[string]")}):
        glft.save_file({}, path, allowed, rules=["ggml"])


@pytest.mark.parametrize(
    ("text", "rule", "problem"),
    [
        ("{{ x | uper }}", "gguf-chat-template", "expected a filter of Jinja, found 'uper' at line 1"),
        ("{{ '\\n' + f() }}", "gguf-chat-rendering", f"{RENDERS} at line 1: 'f' is undefined"),
    ],
)
def test_verify_reports_a_template(text: str, rule: str, problem: str, tmp_path: Path) -> None:
    """llama.cpp loads the model, so this is not a failure."""
    path = tmp_path / "model.gguf"
    glft.save_file({"w": torch.ones(2)}, path, METADATA | {KEY: text}, rules=[])
    found = [finding for finding in check_rules(path, "spec") if "chat" in finding.rule]
    assert [(f.rule, f.path, f.problem, f.sets) for f in found] == [(rule, "metadata -> 1 -> value", problem, ("spec",))]
    assert found[0].offset == path.read_bytes().index(KEY.encode()) + len(KEY) + 4
    assert bool(check_rules(path, "spec", render=False)) == (rule == "gguf-chat-template")
    codes = [in_this_process("verify", path, *rules).returncode for rules in ([], ["--rules", "spec"], ["--rules", "ggml"])]
    assert codes == [0, 1, 0]


def test_a_template_cannot_hang_or_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MemoryError" in unrendered(KEY, "{{ 'a' * 999999999 ~ messages }}")
    assert not unrendered(KEY, "{{ x | uper }}" + " " * (1 << 18))  # too long to be checked
    monkeypatch.setattr(chat_templates, "SECONDS", 1)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    limit = "expected at most 1 s for another library (a limit of glft_schema), found more"
    assert unrendered(KEY, endless) == f"the chat template cannot be rendered: {limit}"
