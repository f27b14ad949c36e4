// What all parts of the page share: its data, elements, numbers as text, and lists of which only the visible rows exist.

const data = JSON.parse(document.getElementById("data").textContent);
const LOCALE = "en-US";
const natural = new Intl.Collator(LOCALE, { numeric: true }).compare; // 2 before 10
const SVG = "http://www.w3.org/2000/svg";
const narrow = matchMedia("(max-width: 62rem)");

// Makes an element. Text goes in as text, never as markup.
function make(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Text from the file, isolated so that right-to-left text does not affect its surroundings.
function quoted(text, attributes = {}) {
  return make("bdi", attributes, text);
}

function byId(id) {
  return document.getElementById(id);
}

function count(number) {
  return number.toLocaleString(LOCALE);
}

function plural(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

function share(part, whole) {
  if (!whole || !part) return "0 %";
  const percent = (100 * part) / whole;
  return percent < 0.01 ? "under 0.01 %" : `${percent.toLocaleString(LOCALE, { maximumFractionDigits: 2 })} %`;
}

// A measured number, or "nan" or "inf" as text.
function measured(number) {
  if (typeof number === "string") return { inf: "∞", "-inf": "−∞", nan: "NaN" }[number] || number;
  const size = Math.abs(number);
  const text = size !== 0 && (size < 1e-4 || size >= 1e7) ? number.toExponential(4) : String(Number(number.toPrecision(6)));
  return text.replace(/-/g, "−");
}

function hex(number, digits = 0) {
  return number.toString(16).padStart(digits, "0");
}

function definitions(rows) {
  const list = make("dl", { class: "facts" });
  for (const [term, ...values] of rows.filter(Boolean)) list.append(make("div", {}, make("dt", {}, term), make("dd", {}, ...values)));
  return list;
}

// Returns a predicate: whether a text contains every word of a search.
function matcher(search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => text.includes(word));
}

// Calls `act` 120 ms after the last key.
function settled(act) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, 120);
  };
}

// A virtual list with rows of one height. Draws the visible rows, and the active row so that it keeps the focus.
class Rows {
  // scroller: the scrolling element; body: the rows' parent; draw(i): creates row i; gap(height): replaces rows not drawn.
  constructor({ scroller, body, draw, gap = (height) => spacer(height), head = null }) {
    Object.assign(this, { scroller, body, make: draw, gap, head, count: 0, active: 0, drawn: new Map(), height: 0 });
    let pending = false;
    scroller.addEventListener("scroll", () => {
      if (pending) return;
      pending = true;
      requestAnimationFrame(() => {
        pending = false;
        this.draw();
      });
    });
    new ResizeObserver(() => this.measure()).observe(scroller);
  }

  // Shows other rows, or creates all rows again.
  reset(count, active = 0) {
    this.count = count;
    this.active = Math.max(0, Math.min(active, count - 1));
    this.drawn.clear();
    this.body.replaceChildren();
    if (!this.height) this.measure();
    else this.draw();
  }

  measure() {
    if (!this.count) return;
    const row = this.drawn.get(this.active) || this.make(this.active);
    const added = !row.isConnected;
    if (added) this.body.append(row);
    const height = row.getBoundingClientRect().height;
    if (added) row.remove();
    if (height) this.height = height;
    this.draw();
  }

  draw(again = true) {
    const height = this.height || 32;
    const seen = this.scroller.clientHeight;
    const top = Math.max(0, Math.floor(this.scroller.scrollTop / height) - 8);
    const end = Math.min(this.count, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / height) + 8);
    const wanted = [];
    for (let i = Math.min(top, this.count); i < end; i++) wanted.push(i);
    if (this.count && this.active < top) wanted.unshift(this.active);
    if (this.count && this.active >= end) wanted.push(this.active);
    const nodes = [];
    const kept = new Map();
    let at = 0;
    for (const i of wanted) {
      if (i > at) nodes.push(this.gap((i - at) * height));
      kept.set(i, this.drawn.get(i) || this.make(i));
      nodes.push(kept.get(i));
      at = i + 1;
    }
    if (at < this.count) nodes.push(this.gap((this.count - at) * height));
    this.drawn = kept;
    const stay = new Set(nodes);
    for (const child of [...this.body.childNodes]) if (!stay.has(child)) child.remove();
    nodes.forEach((node, k) => {
      if (this.body.childNodes[k] !== node) this.body.insertBefore(node, this.body.childNodes[k] || null);
    });
    if (again && this.scroller.clientHeight > seen) this.draw(false); // its height depends on its rows
  }

  // Scrolls row i into view; to the middle if it was far away.
  reveal(i, centre = false) {
    const covered = this.head ? this.head.getBoundingClientRect().height : 0;
    const seen = this.scroller.clientHeight - covered;
    const [first, last] = [i * this.height, (i + 1) * this.height];
    const top = this.scroller.scrollTop;
    if (first < top || last > top + seen) {
      const far = centre || first < top - this.height * 2 || last > top + seen + this.height * 2;
      this.scroller.scrollTop = far ? first - seen / 2 + this.height : first < top ? first : last - seen;
    }
    this.draw();
  }

  // Puts row i in the tab order, and focuses it.
  go(i, focus = true) {
    const before = this.active;
    this.active = Math.max(0, Math.min(i, this.count - 1));
    this.reveal(this.active);
    for (const [row, stop] of [[before, "-1"], [this.active, "0"]]) {
      if (this.drawn.has(row)) focusable(this.drawn.get(row)).tabIndex = stop;
    }
    if (focus && this.drawn.has(this.active)) focusable(this.drawn.get(this.active)).focus({ preventScroll: true });
  }

  // Moves by a navigation key; returns whether the key is one.
  key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / (this.height || 32)) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
    if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey || !this.count) return false;
    event.preventDefault();
    this.go(this.active + steps[event.key]);
    return true;
  }
}

function focusable(row) {
  return row.matches("[tabindex]") ? row : row.querySelector("[tabindex]");
}

function spacer(height) {
  const space = make("div", { role: "presentation", class: "space" });
  space.style.height = `${height}px`;
  return space;
}

function rowSpacer(height) {
  const space = make("tr", { "aria-hidden": "true", class: "space" }, make("td"));
  space.style.height = `${height}px`;
  return space;
}

// The button names the theme that it switches to.
function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  const is = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : dark.matches);
  const label = () => {
    button.textContent = is() ? "Light" : "Dark";
    button.setAttribute("aria-label", `${button.textContent} theme`);
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = is() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();
}

document.documentElement.classList.add("scripted");
startTheme();
