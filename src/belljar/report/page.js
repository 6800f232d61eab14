// Sorts, filters and unfolds. Text of a run becomes text nodes only.
const $ = (id) => document.getElementById(id);
const made = (tag, text = "", className = "") => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
};

// --- timelines: the data of a sample is read when it is opened

const entriesOf = (unit) => JSON.parse($(`d${unit}`).textContent);

function bodies(notes, count, found) {
  const parts = [];
  if (notes.length) parts.push(made("pre", notes.join("\n"), "text"));
  for (const [name, text, note] of found) {
    parts.push(made("p", `${name}: ${note}`, "quiet"), made("pre", text, "text"));
  }
  if (count > found.length) {
    parts.push(made("p", `${count - found.length} more in the ledger`, "quiet"));
  }
  return parts;
}

function row([number, at, group, what, outcome, bad, guest, notes, count, found]) {
  const line = made("tr", "", bad ? "bad" : "");
  line.dataset.group = group;
  const time = made("td", at);
  time.title = number < 0 ? "Inspect's log" : `event ${number}`;
  const first = made("td");
  if (group === "transcript") {
    first.className = "turn";
    first.append(made("strong", outcome, "text"), made("div", what, "text"));
    line.append(time, made("td"), made("td"), made("td"), first);
    return line;
  }
  first.append(made("span", what, "text what"));
  if (notes.length || count) {
    const more = made("details");
    more.append(made("summary", found.map(([name]) => name).join(", ") || "more"));
    more.addEventListener("toggle", () => more.append(...bodies(notes, count, found)), { once: true });
    first.append(more);
  }
  const last = made("td", outcome, "text");
  if (guest) last.append(made("span", " (the guest's word)", "quiet"));
  line.append(time, made("td", group), first, last);
  return line;
}

function unfold(place) {
  const entries = entriesOf(place.dataset.unit);
  if (!entries.length) return place.append(made("p", "Nothing is listed.", "quiet"));
  const beside = entries.some(([, , group]) => group === "transcript");
  const table = made("table", "", beside ? "entries beside" : "entries");
  const head = table.createTHead().insertRow();
  for (const name of ["time (UTC)", "kind", "what", "outcome", ...(beside ? ["transcript"] : [])]) {
    const cell = made("th", name);
    cell.scope = "col";
    head.append(cell);
  }
  const lines = entries.map(row);
  table.createTBody().append(...lines);
  const choice = made("fieldset");
  choice.append(made("legend", "Show"));
  for (const group of new Set(entries.map(([, , group]) => group))) {
    const label = made("label");
    const box = made("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      for (const line of lines) if (line.dataset.group === group) line.hidden = !box.checked;
    });
    label.append(box, ` ${group}`);
    choice.append(label);
  }
  place.append(choice, table);
}

for (const unit of document.querySelectorAll("details.unit")) {
  const place = unit.querySelector(".timeline");
  unit.addEventListener("toggle", () => unit.open && !place.firstChild && unfold(place));
}

function openNamed() {
  const named = /^#s\d+$/.test(location.hash) && $(location.hash.slice(1));
  if (named) {
    named.open = true;
    named.scrollIntoView();
    named.querySelector("summary").focus();
  }
}
addEventListener("hashchange", openNamed);
openNamed();

// --- the table

const body = $("table").tBodies[0];
const rows = [...body.rows].map((line) => ({
  line,
  unit: line.dataset.unit,
  verdict: line.dataset.verdict,
  text: line.textContent.toLowerCase(),
  details: $(`s${line.dataset.unit}`),
}));
const keyOf = (line, column) => {
  const cell = line.cells[column];
  const value = cell.dataset.sort ?? cell.textContent.trim();
  return value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value;
};
const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

[...$("table").tHead.rows[0].cells].forEach((head, column) => {
  const button = made("button", head.textContent);
  button.type = "button";
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
    const keyed = rows.map(({ line }) => [keyOf(line, column), line]);
    keyed.sort(([a], [b]) => turn * compare(a, b));
    body.append(...keyed.map(([, line]) => line));
  });
});

// JSON as it stands in the page is searched unparsed, so the needle is written the same way.
const inJson = (text) =>
  JSON.stringify(text).slice(1, -1).replace(/[<>&]/g, (char) => `\\u00${char.charCodeAt(0).toString(16)}`);

let turn = 0;
async function filter() {
  const mine = ++turn;
  const wanted = $("search").value.trim().toLowerCase();
  const which = $("which").value;
  const needle = $("deep").checked && wanted ? inJson(wanted) : "";
  $("progress").hidden = !needle;
  let found = 0;
  let since = performance.now();
  for (const [index, each] of rows.entries()) {
    if (needle && performance.now() - since > 30) {
      $("progress").value = index / rows.length;
      await new Promise((resume) => setTimeout(resume));
      if (mine !== turn) return;
      since = performance.now();
    }
    const fits =
      (!which || each.verdict === which) &&
      (!wanted ||
        each.text.includes(wanted) ||
        (needle && $(`d${each.unit}`).textContent.toLowerCase().includes(needle)));
    each.line.hidden = each.details.hidden = !fits;
    found += fits ? 1 : 0;
  }
  $("progress").hidden = true;
  $("found").textContent = `${found} of ${rows.length}`;
}
$("filter").hidden = false;
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", filter);
filter();
