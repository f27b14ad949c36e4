// The searchable table of tokens.

function startTokens() {
  const { count: all, ids, texts, types, normal, roles } = data.vocabulary;
  const first = texts.length - ids.length; // the tokens of the first ids are all on the page
  const idOf = (k) => (k < first ? k : ids[k - first]);
  const typeOf = (k) => types[idOf(k)] || normal;
  const lowered = texts.map((text, k) => `${idOf(k)} ${text}`.toLowerCase());
  let order = [];
  const list = new Rows({
    scroller: byId("token-scroller"),
    body: byId("token-table").tBodies[0],
    head: byId("token-table").tHead,
    gap: rowSpacer,
    draw: (at) => {
      const k = order[at];
      const cells = [make("th", { scope: "row", class: "id" }, String(idOf(k))), make("td", {}, quoted(texts[k])), make("td", { class: "kind" }, typeOf(k))];
      return make("tr", { tabindex: at === list.active ? 0 : -1, "aria-rowindex": at + 2 }, ...cells);
    },
  });
  const search = () => {
    const found = matcher(byId("token-search").value);
    const type = byId("token-type").value;
    order = texts.map((_, k) => k).filter((k) => found(lowered[k]) && (type === "" || typeOf(k) === type));
    byId("token-count").textContent = `${count(order.length)} of ${plural(texts.length, "token")}`;
    list.scroller.scrollTop = 0;
    list.reset(order.length);
  };
  const partly = `The page has the first ${count(first)} of ${count(all)} tokens${ids.length ? ` and ${count(ids.length)} others of special types` : ""}.`;
  byId("tokens-note").textContent = texts.length < all ? partly : `All ${count(all)} tokens.`;
  byId("roles").append(definitions(roles.map(([role, id, text]) => [role.replaceAll("_", " "), `${id} `, quoted(text, { class: "text" })])));
  for (const type of new Set(texts.map((_, k) => typeOf(k)))) if (type) byId("token-type").append(make("option", { value: type }, type));
  byId("token-search").addEventListener("input", settled(search));
  byId("token-type").addEventListener("change", search);
  byId("token-table").tBodies[0].addEventListener("keydown", (event) => list.key(event));
  search();
}
