"""The page in a browser: search, sorting, selection, keyboard, and small screens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import Container, save_file
from glft_schema.describe.page.content import page
from glft_schema.weights import checkpoints
from tests.describe.test_page import HOSTILE, hostile_file
from tests.oracles import glft_reference as reference
from tests.tools.browser import started
from tests.tools.command_line import in_this_process

LAPTOP, PHONE = (1280, 800), (390, 844)
METADATA = {
    "general.architecture": "toy",
    "general.quantization_version": 2,
    "toy.list": [f"token {i}" for i in range(100)],
    "toy.text": "word " * 400,
    "toy.number": 7,
}
UNNAMED = """all => all.filter(one => !one.textContent.trim() && !one.getAttribute("aria-label") && !one.labels?.length)
    .map(one => one.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


@contextmanager
def opened(browser: Any, path: Path, size: tuple[int, int] = LAPTOP, theme: str = "light", **more: Any) -> Iterator[Any]:
    """Yields a page.

    Fails on requests, console messages, errors, dialogs, executed names, horizontal scrolling,
    controls without a name, duplicate ids and headings that skip a level.
    """
    viewport, url, faults = {"width": size[0], "height": size[1]}, path.as_uri(), list[str]()
    context = browser.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce", **more)
    try:
        tab = context.new_page()
        tab.on("console", lambda message: faults.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: faults.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: (faults.append("dialog"), dialog.dismiss()))
        context.on("request", lambda request: faults.extend([f"request: {request.url}"] * (request.url != url)))
        tab.goto(url)
        yield tab
        assert tab.evaluate("window.ran === undefined")
        assert tab.evaluate("document.documentElement.scrollWidth") == size[0]
        assert tab.eval_on_selector_all("button, input, select, a", UNNAMED) == []
        ids = tab.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
        assert len(ids) == len(set(ids))
        levels = tab.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(one => Number(one.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
    finally:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    tensors = {f"blk.{i}.{part}.weight": torch.randn(8, 64) for i in range(12) for part in ("up", "down")}
    return {"embed.weight": torch.randn(100, 64), **tensors, "norm.weight": torch.randn(200)}


@pytest.fixture(scope="module")
def gguf(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    return written(folder, "model", weights, METADATA, {"blk.*": "q8_0"}, "gguf")


@pytest.fixture(scope="module")
def glft(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    return written(folder, "q4", weights, {"a": "b"}, {"*": "q4_per_group_64"}, "glft", checkpoints.in_memory(weights))


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Path:
    (folder / "hostile.html").write_text(page(Container.parse(hostile_file())), "utf-8")
    return folder / "hostile.html"


def written(folder: Path, name: str, tensors: Any, metadata: Any, schemes: Any, format: str, against: Any = None) -> Path:
    """Writes a file and its page, and returns the path of the page."""
    save_file(tensors, folder / f"{name}.{format}", metadata, schemes=schemes, format=format)
    with glft_schema.open(folder / f"{name}.{format}") as file:
        (folder / f"{name}.html").write_text(page(file, against), "utf-8")
    return folder / f"{name}.html"


def rows(tab: Any) -> list[str]:
    """Returns the names in the drawn rows of the table."""
    found: list[str] = tab.locator("#tensor-table tbody tr[data-tensor] th").all_inner_texts()
    return found


def search(tab: Any, text: str, field: str = "#tensor-search") -> None:
    tab.fill(field, text)
    tab.wait_for_timeout(200)


def marked(tab: Any) -> list[int]:
    """Returns the positions of the bytes that are highlighted."""
    found: list[int] = tab.eval_on_selector_all("#dump .byte.marked", "all => all.map(one => Number(one.dataset.byte))")
    return found


def facts(tab: Any, selector: str) -> dict[str, str]:
    """Returns terms and values of what is in a definition list."""
    terms = tab.locator(f"{selector} dt").all_inner_texts()
    return dict(zip(terms, tab.locator(f"{selector} dd").all_inner_texts(), strict=True))


def number(text: str) -> float:
    return float(text.replace("\u2212", "-").replace(",", ""))


def test_search_filters(browser: Any, gguf: Path) -> None:
    with opened(browser, gguf) as tab:
        for text, count in (("", 26), ("BLK.1 up", 3), ("q8_0", 24), ("nothing of the kind", 0)):
            search(tab, text)
            assert tab.inner_text("#tensor-count") == f"{count} of 26 tensors"
        assert rows(tab) == []
        assert tab.locator("#no-tensors").is_visible()
        search(tab, "")
        tab.select_option("#tensor-type", label="F32")
        assert rows(tab) == ["embed.weight", "norm.weight"]
        search(tab, "toy.n", "#metadata-search")
        assert tab.locator("#metadata-table tbody tr:visible").all_inner_texts() == ["toy.number\tuint32\t7"]
        assert tab.inner_text("#metadata-count") == "1 of 5 entries"


def test_sort_sorts(browser: Any, glft: Path) -> None:
    with opened(browser, glft) as tab:
        search(tab, "up.")
        for step in (1, -1):  # names in natural order
            tab.click('th[data-column="name"] button')
            assert rows(tab) == [f"blk.{i}.up.weight" for i in range(12)][::step]
        search(tab, "")
        for column in ("bytes", "bits", "dims", "at", "error"):
            directions = []
            for _ in range(2):
                tab.click(f'th[data-column="{column}"] button')
                directions.append(tab.get_attribute(f'th[data-column="{column}"]', "aria-sort"))
                texts = tab.locator(f"#tensor-table tbody td.{column}").all_inner_texts()
                values = [np.prod([number(part) for part in text.removesuffix(" %").split(" \u00d7 ")]) for text in texts]
                assert values == sorted(values, reverse=directions[-1] == "descending")
                assert len(set(values)) > 1
            assert sorted(directions) == ["ascending", "descending"]


def test_a_field_shows_its_bytes_and_a_byte_its_field(browser: Any, gguf: Path) -> None:
    stored = gguf.with_suffix(".gguf").read_bytes()
    with opened(browser, gguf) as tab:
        tab.click('#tree [role="treeitem"]:has-text("version")')
        assert marked(tab) == [4, 5, 6, 7]
        shown = tab.locator("#dump .byte.marked").all_inner_texts()
        assert bytes.fromhex("".join(shown)) == stored[4:8]
        expected = {"Path": "header → version", "Type": "u32", "Value": "3", "Bytes": "4 to 7 (0x4, 4 bytes)"}
        assert facts(tab, "#field") == expected
        assert tab.inner_text("#field .sentence") == "1, 2 or 3"
        assert tab.get_attribute('#tree [aria-selected="true"]', "aria-level") == "2"
        at = stored.index(b"general.architecture") + 3  # in a key that the tree does not show yet
        tab.click(f'#dump [data-byte="{at}"]')
        assert facts(tab, "#field")["Path"].startswith("metadata → 0 → key")
        assert at in marked(tab)
        assert facts(tab, "#field")["Value"] == "general.architecture"


def test_a_tensor_leads_to_its_bytes(browser: Any, gguf: Path) -> None:
    with glft_schema.open(gguf.with_suffix(".gguf")) as file:
        tensor = file.tensors["blk.3.up.weight"]
    with opened(browser, gguf) as tab:
        search(tab, "blk.3.up")
        tab.click("#tensor-table tbody .open")
        found = facts(tab, "#details")
        assert (found["Type"], found["Dims as stored"], found["Bits per weight"]) == ("Q8_0, code 8", "64 \u00d7 8", "8.5")
        assert tab.locator("#details .field .name").all_inner_texts() == ["name", "dims", "dtype", "offset", "blocks"]
        tab.click("#details .field >> nth=-1")
        assert marked(tab) == list(range(tensor.position, tensor.position + 64))
        start, end = tensor.position, tensor.position + tensor.nbytes - 1
        assert facts(tab, "#field")["Bytes"].startswith(f"{start:,} to {end:,} (0x{start:x}")
        assert "Some of these bytes are not on this page." in tab.inner_text("#field")
        tab.click(f'#dump [data-byte="{start + 1}"]')  # of the first block the scale, f16
        assert re.search(r"blocks → 0.* → d\b", facts(tab, "#field")["Path"])


def test_values_and_errors_are_what_numpy_says(browser: Any, glft: Path, weights: dict[str, torch.Tensor]) -> None:
    with glft_schema.open(glft.with_suffix(".glft")) as file:
        raw = bytes(file.tensors["embed.weight"].raw)
    stored = np.array(reference.numbers(reference.Q4, [100, 64], raw))
    error = stored - weights["embed.weight"].double().numpy().reshape(-1)
    with opened(browser, glft) as tab:
        assert "26 of 26 tensors compared" in tab.inner_text("#overview")
        search(tab, "embed")
        tab.click("#tensor-table tbody .open")
        found = facts(tab, "#details")
        assert "All 6,400 values" in tab.inner_text("#details")
        expected = {term: getattr(stored, term.lower())() for term in ("Min", "Max", "Mean", "Std")}
        expected |= {"RMS error": np.sqrt((error**2).mean()), "Max error": np.abs(error).max(), "NaN": 0, "Infinite": 0}
        assert {term: number(found[term]) for term in expected} == pytest.approx(expected, rel=1e-5)
        assert number(found["Cosine"]) == pytest.approx(1, abs=0.01)
        for at, numbers in ((0, stored), (1, error)):
            tab.locator("#details .counts summary").nth(at).click()
            counts = tab.locator("#details .counts").nth(at).locator("tbody td:nth-child(3)").all_inner_texts()
            assert [number(text) for text in counts] == np.histogram(numbers, len(counts))[0].tolist()
        heights = tab.eval_on_selector_all(".histogram >> nth=0 >> rect", "all => all.map(one => +one.getAttribute('height'))")
        assert np.argmax(heights) == np.argmax(np.histogram(stored, len(heights))[0])


def test_the_map(browser: Any, gguf: Path) -> None:
    whole = gguf.with_suffix(".gguf").stat().st_size
    with opened(browser, gguf) as tab:
        boxes = [tab.locator(f"#treemap{inner}").bounding_box() for inner in ("", ' [aria-label^="embed.weight"]')]
        area, part = (box["width"] * box["height"] for box in boxes)
        assert part / area == pytest.approx(25600 / whole, rel=0.02)
        label = tab.get_attribute('#treemap [aria-label^="embed.weight"]', "aria-label")
        assert re.fullmatch(r"embed\.weight, F32, 25,600 bytes, [\d.]+ %", label)
        tab.click('#treemap [aria-label^="embed.weight"]')
        assert tab.inner_text("#details-name") == "embed.weight"
        assert tab.inner_text("#tensor-table tr.selected th") == "embed.weight"
        tab.click("#treemap .module >> nth=0")
        assert tab.locator("#trail li").all_inner_texts() == ["Whole file", "blk"]
        tab.keyboard.press("Escape")
        assert tab.locator("#trail li").all_inner_texts() == ["Whole file"]
        tab.click('.legend button:has-text("F32")')
        assert rows(tab) == ["embed.weight", "norm.weight"]


def test_by_keyboard_alone(browser: Any, gguf: Path) -> None:
    with opened(browser, gguf) as tab:

        def focused(selector: str) -> bool:
            return bool(tab.evaluate(f"document.activeElement.matches({selector!r})"))

        def press(*keys: str) -> str:
            """Presses keys, and returns the text of what has the focus then."""
            for key in keys:
                tab.keyboard.press(key)
            return str(tab.evaluate("document.activeElement.innerText"))

        def tab_to(selector: str, key: str = "Tab") -> None:
            for _ in range(200):
                if focused(selector):
                    break
                press(key)
            assert focused(selector), selector
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"

        press("Tab")
        assert focused(".skip")
        press("Enter")
        assert focused("#main")
        tab_to("#treemap button")
        assert press() != press("ArrowRight")
        assert focused("#treemap button")
        tab_to("#tensor-search")
        tab.keyboard.type("down")
        tab.wait_for_timeout(200)
        assert tab.inner_text("#tensor-count") == "12 of 26 tensors"
        tab_to('th[data-column="name"] button')
        press("Enter", "Enter")
        assert rows(tab)[0] == "blk.11.down.weight"
        tab_to("#tensor-table tbody .open")
        assert press("ArrowDown", "Enter") == tab.inner_text("#details-name") == "blk.10.down.weight"
        assert press("End") == "blk.0.down.weight"
        press("Escape")
        assert not tab.locator("#details").is_visible()
        tab_to("#tree [role=treeitem]")
        press("Home", "ArrowRight", "Enter")
        assert facts(tab, "#field")["Path"] == "header → magic"
        assert marked(tab) == [0, 1, 2, 3]
        tab_to("#dump [role=gridcell]")
        press(*["ArrowRight"] * 4)
        assert facts(tab, "#field")["Path"] == "header → version"
        press("End")
        assert focused("#dump [role=gridcell]")
        press(*["Tab"] * 3)  # out of the page: no trap
        assert not focused("#dump *")
        tab_to("#theme", "Shift+Tab")
        assert press("Enter") == "Light"
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_hostile_names_are_text(browser: Any, hostile: Path) -> None:
    with opened(browser, hostile) as tab:
        assert tab.inner_text("#tensor-count") == f"{len(HOSTILE) + 1} of {len(HOSTILE) + 1} tensors"
        shown = {
            HOSTILE[0],
            HOSTILE[2],
            "\\u202egnp.\\u2066exe\\u2069",
            "nul\\x00 tab\\x09 line\\x0a escape\\x1b[31m",
            "__proto__",
        }
        assert shown <= set(rows(tab))
        for i in range(len(HOSTILE) + 1):
            tab.click(f'tr[data-tensor="{i}"] .open')
            tab.click("#details .field >> nth=0")
            assert tab.inner_text("#field h3") == "name"
        search(tab, "onerror", "#metadata-search")
        assert tab.locator("#metadata-table tbody tr:visible").count() == 2
        for button in tab.locator("#treemap button").all()[:5]:
            button.click()
        assert tab.locator("main img, main script, main iframe").count() == 0
        assert tab.evaluate("document.querySelectorAll('script').length") == 2


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours as the browser writes them, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


GROUND = """(element, name) => {
    while (element) {
        const colour = getComputedStyle(element).backgroundColor;
        if (!/rgba\\(.*, 0\\)/.test(colour)) return colour;
        element = element.parentElement;
    }
    return 'rgb(255, 255, 255)';
}"""
TEXTS = [
    "h1, .kicker, .tiles dt, .tiles small, .card p, .bar a, #theme, main > section > .note, .legend .amount",
    "#tensor-table tbody td, #tensor-count, .tool label, #treemap .label, #treemap .module, .kind",
    "#tree .name, #tree .value, #field dt, #field dd, .byte, .letters span, .offset, .line.folded span, footer p",
]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_it_reads_well(browser: Any, gguf: Path, size: tuple[int, int], theme: str) -> None:
    with opened(browser, gguf, size, theme) as tab:
        tab.click("#tensor-table tbody .open >> nth=1")
        assert tab.evaluate("document.documentElement.scrollWidth") == size[0]
        box = tab.locator("#details").bounding_box()
        assert 0 <= box["x"] <= size[0] - box["width"]
        check_contrast(tab, "#details dt, #details dd, #details .note, .range, tr.selected th")
        tab.keyboard.press("Escape")
        for selectors in TEXTS:
            check_contrast(tab, selectors)
        assert tab.locator("#dump .line >> nth=0 >> .byte").count() == (16 if size == LAPTOP else 8)


def check_contrast(tab: Any, selectors: str) -> None:
    pairs = tab.eval_on_selector_all(
        selectors,
        f"all => all.slice(0, 400).map(one => [getComputedStyle(one).color, ({GROUND})(one), one.outerHTML.slice(0, 90)])",
    )
    assert pairs
    for colour, ground, where in pairs:
        assert contrast(colour, ground) >= 4.5, (colour, ground, where)


def test_every_fill_of_a_type_carries_its_label(browser: Any, gguf: Path) -> None:
    for theme in ("light", "dark"):
        with opened(browser, gguf, theme=theme) as tab:
            fills = tab.evaluate(
                "[0,1,2,3,4,5,6,7].map(i => { const e = document.querySelector('.cell'); e.className = `cell type-${i} dash-0`;"
                " const s = getComputedStyle(e); return [s.color, s.backgroundColor]; })"
            )
            assert len({fill for _, fill in fills}) == 8
            assert min(contrast(*pair) for pair in fills) >= 4.5


def test_without_scripts(browser: Any, hostile: Path) -> None:
    with opened(browser, hostile, java_script_enabled=False) as tab:
        assert "Scripts are off" in tab.locator("noscript .note, #overview .note").all_inner_texts()[-1]
        assert tab.locator("#overview tbody tr").count() == len(HOSTILE) + 1
        assert tab.locator("#overview tbody th").first.inner_text() == HOSTILE[0]
        assert not tab.locator("#tensors").is_visible()


@pytest.mark.parametrize(("size", "theme"), [(LAPTOP, "dark"), (PHONE, "light")], ids=str)
def test_comparisons(size: tuple[int, int], theme: str, browser: Any, tmp_path: Path) -> None:
    """Hostile names and texts are text; rows are found and sorted; the page fits the screen."""
    one, other, out = tmp_path / "one.gguf", tmp_path / "other.gguf", tmp_path / "page.html"
    tensors = {name: torch.ones(2) for name in (*HOSTILE, "same")}
    worse = {name: torch.ones(2) * (1 + 1 / (i + 2)) for i, name in enumerate(HOSTILE)}
    save_file(tensors, one, {name: name for name in HOSTILE}, rules=())
    save_file(tensors | worse | {"new": torch.ones(4)}, other, {name: f"{name}\nline" for name in HOSTILE}, rules=())
    assert in_this_process("compare", one, other, "--html", out).returncode == 1
    with opened(browser, out, size, theme) as tab:
        names = tab.locator("#tensors tbody tr:not([hidden]) th")
        assert names.all_text_contents()[:3] == ["new", *HOSTILE[:2]]
        assert tab.inner_text("#tensor-count") == f"{len(HOSTILE) + 1} of {len(HOSTILE) + 1} tensors"
        assert tab.inner_text(".diff >> nth=0").split("\n")[1:] == [f" {HOSTILE[0]}", "+line"]
        for button, first in (("Relative", HOSTILE[-1]), ("Relative", HOSTILE[0]), ("State", "new")):
            tab.click(f"#tensors thead button:has-text('{button}')")
            assert names.all_text_contents()[0].strip("'")[:8] == first[:8]
        assert tab.locator("#tensors th[aria-sort=ascending]").inner_text().startswith("State")
        search(tab, "ADDED new")
        assert names.all_text_contents() == ["new"]


def test_two_thousand_tensors(browser: Any, folder: Path) -> None:
    tensors = {f"model.layers.{i // 8}.part_{i % 8}.weight": torch.full((2, 4), float(i)) for i in range(2000)}
    path = written(folder, "many", tensors, None, None, "glft")
    assert path.stat().st_size < 2_500_000
    with opened(browser, path) as tab:
        assert tab.inner_text("#tensor-count") == "2,000 of 2,000 tensors"
        assert len(rows(tab)) < 100
        tab.focus("#tensor-table tbody .open")
        tab.keyboard.press("End")
        assert rows(tab)[-1] == tab.evaluate("document.activeElement.innerText") == "model.layers.249.part_7.weight"
        tab.keyboard.press("Enter")
        assert facts(tab, "#details")["Min"] == "1999"
        tab.click("#details .field >> nth=-1")
        assert facts(tab, "#field")["Path"].endswith("'model.layers.249.part_7.weight' → weights")
        assert len(marked(tab)) == 32


def test_sets_of_files_are_one_page(browser: Any, folder: Path, gguf: Path) -> None:
    first, _, third = glft_schema.split(gguf.with_suffix(".gguf"), folder / "set", max_tensors=10)
    with glft_schema.open(first) as file:
        (folder / "set.html").write_text(page(file), "utf-8")
        last = list(file.shards[2].tensors)[-1]
        position = file.tensors[last].position
    with opened(browser, folder / "set.html") as tab:
        assert tab.inner_text("#tensor-count") == "26 of 26 tensors"
        search(tab, last)
        tab.click("#tensor-table tbody .open")
        assert facts(tab, "#details")["File"] == Path(third).name
        tab.click("#details .field >> nth=-1")
        assert marked(tab)[0] == position
        assert tab.input_value("#file") == "2"
        tab.select_option("#file", "0")
        assert facts(tab, "#field")["Path"] == "header"


def test_tokens(browser: Any, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    texts = ["<s>", *(f"token {i}" for i in range(1, 20_000)), "<img src=x onerror='window.ran = 1'>"]
    types = np.ones(len(texts), np.int32)
    types[[0, -1]] = 3, 4
    more = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types, "tokenizer.ggml.bos_token_id": 0}
    with opened(browser, written(folder, "tokens", weights, METADATA | more, None, "gguf"), PHONE) as tab:
        rows = tab.locator("#token-table tbody tr")
        assert "first 16,384 of 20,001 tokens and 1 others of special types" in tab.inner_text("#tokens-note")
        assert facts(tab, "#roles") == {"bos": "0 <s>"}
        tab.select_option("#token-type", "user-defined")
        assert rows.all_inner_texts() == [f"20000\t{texts[-1]}\tuser-defined"]
        tab.select_option("#token-type", "")
        search(tab, "16383", "#token-search")
        assert rows.all_inner_texts() == ["16383\ttoken 16383\tnormal"]
        right = "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
        assert tab.eval_on_selector_all("#tensor-table thead button", right) <= PHONE[0]
