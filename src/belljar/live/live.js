// Shows what the server sends. Text of a run becomes text nodes only.
const $ = (id) => document.getElementById(id);
const made = (tag, text = "", className = "") => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
};
const MAX_ROWS = 500; // in the table; the server keeps more, and the ledger all
const MAX_KEPT = 5000; // lines that a filter can still find
const POINTS = 300; // of a plot: five minutes

// --- the session: the token of the address's fragment becomes a secret, which this tab keeps for
// this address and port

let secret = sessionStorage.getItem("secret") || "";
const headers = () => ({ "X-Belljar-Secret": secret });
const status = (text) => ($("status").textContent = text);

async function begin() {
  const token = location.hash.slice(1);
  const answer = await fetch("/session", { method: "POST", headers: headers(), body: JSON.stringify({ token }) });
  if (!answer.ok) return status("Open the address that `belljar serve` printed: it has the token.");
  history.replaceState(null, "", "/");
  const session = await answer.json();
  secret = session.secret;
  sessionStorage.setItem("secret", secret);
  operator = session.operator;
  $("actions").hidden = !operator;
  listen();
}
let operator = false;

let cursor = "";
async function listen() {
  for (;;) {
    try {
      const answer = await fetch("/events", { headers: { ...headers(), ...(cursor && { "Last-Event-ID": cursor }) } });
      if (answer.status === 401) return status("Open the address that `belljar serve` printed: it has the token.");
      if (!answer.ok) throw new Error((await answer.json()).error);
      status("live");
      await read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch {
      // said below
    }
    status("disconnected; trying again …");
    await new Promise((resume) => setTimeout(resume, 1000));
  }
}

async function read(reader) {
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.id) cursor = fields.id;
      (fields.event === "lines" ? take : show)(JSON.parse(fields.data));
    }
  }
}

// --- events

let kept = [];
let missed = 0;
function take(batch) {
  if (batch.anew) {
    kept = [];
    $("lines").replaceChildren();
  }
  if (batch.missed) {
    missed += batch.missed;
    $("missed").textContent = `${missed} events were missed: this page was too slow; the ledger has them`;
  }
  kept = [...kept, ...batch.lines].slice(-MAX_KEPT);
  for (const line of batch.lines) know(line.kind.split(".")[0]);
  if (!$("paused").checked) add(batch.lines.filter(fits));
}

const kinds = new Set();
function know(kind) {
  if (kinds.has(kind)) return;
  kinds.add(kind);
  $("kind").append(made("option", kind));
}

function fits(line) {
  const wanted = $("search").value.trim().toLowerCase();
  const kind = $("kind").value;
  return (
    (!kind || line.kind.split(".")[0] === kind) &&
    (!$("alerts").checked || line.alert) &&
    (!wanted || `${line.run} ${line.cell} ${line.kind} ${line.text}`.toLowerCase().includes(wanted))
  );
}

function add(lines) {
  const rows = lines.slice(-MAX_ROWS).reverse().map((line) => {
    const row = made("tr", "", line.alert ? "alert" : "");
    row.append(
      made("td", line.time),
      made("td", line.run.slice(-6)),
      made("td", line.cell, "text"),
      made("td", line.kind + (line.guest ? " (guest's word)" : "")),
      made("td", line.text, "text"),
    );
    return row;
  });
  const body = $("lines");
  body.prepend(...rows);
  while (body.rows.length > MAX_ROWS) body.lastChild.remove();
}

$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", () => {
  if ($("paused").checked) return;
  $("lines").replaceChildren();
  add(kept.filter(fits));
});

// --- runs and cells

const size = (bytes) => (bytes === null ? "-" : `${(bytes / 2 ** 20).toFixed(0)} MiB`);
const COLUMNS = ["cell", "tier", "sample", "phase", "age", "memory", "cpu", "commands", "requests", "refused", "signals", "last command"];

function show(state) {
  $("held").hidden = !state.held;
  $("held").textContent = state.held;
  $("release").hidden = !state.held;
  $("idle").hidden = state.runs.length > 0;
  const open = new Set([...document.querySelectorAll("#runs details:not([open])")].map((each) => each.dataset.run));
  $("runs").replaceChildren(...state.runs.map((run) => shownRun(run, !open.has(run.run))));
  plot(state.runs.flatMap((run) => run.cells));
}

function shownRun(run, isOpen) {
  const part = made("details");
  part.open = isOpen;
  part.dataset.run = run.run;
  const head = made("summary");
  head.append(
    made("strong", run.run),
    made("span", ` ${run.what} `, "text"),
    made("span", `${run.phase}: ${run.finished} of ${run.begun} samples that started are finished, ${run.events} events`, "quiet"),
  );
  const cells = tableOf(COLUMNS, run.cells.map(shownCell));
  const foot = made("p");
  if (operator && run.phase !== "ended") foot.append(stopButton(run.run, "Stop this run"));
  part.append(head, cells, ...(run.edges.length ? [graphOf(run.edges)] : []), foot);
  return part;
}

function tableOf(columns, rows) {
  const table = made("table");
  const names = table.createTHead().insertRow();
  for (const name of columns) {
    const cell = made("th", name);
    cell.scope = "col";
    names.append(cell);
  }
  table.createTBody().append(...rows);
  const wide = made("div", "", "wide");
  wide.append(table);
  return wide;
}

const svg = (name, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};

// Who asked whom: cells on the left, places on the right
function graphOf(edges) {
  const [left, right] = [0, 1].map((side) => [...new Set(edges.map((edge) => edge[side]))]);
  const at = (names, name) => 20 + 24 * names.indexOf(name);
  const height = 16 + 24 * Math.max(left.length, right.length);
  const words = edges.map(([cell, place, allowed, count]) => `${cell || "?"} → ${place}: ${count} ${allowed ? "allowed" : "refused"}`);
  const graph = svg("svg", { viewBox: `0 0 640 ${height}`, class: "graph", role: "img", "aria-label": words.join("; ") });
  for (const [cell, place, allowed, count] of edges) {
    const [y1, y2] = [at(left, cell) - 4, at(right, place) - 4];
    const line = svg("line", { x1: 205, x2: 375, y1, y2, class: allowed ? "allowed" : "refused" });
    graph.append(line, svg("text", { x: 350, y: y1 + 0.85 * (y2 - y1) - 3, "text-anchor": "middle", class: "quiet" }, String(count)));
  }
  for (const name of left) graph.append(svg("text", { x: 200, y: at(left, name), "text-anchor": "end" }, (name || "?").slice(0, 28)));
  for (const name of right) graph.append(svg("text", { x: 380, y: at(right, name) }, name.slice(0, 36)));
  const figure = made("figure");
  figure.append(graph, made("figcaption", "Network: solid lines are allowed, dashed ones refused", "quiet"));
  return figure;
}

function shownCell(cell) {
  const row = made("tr", "", cell.signals ? "alert" : "");
  const share = cell.cpu_percent === null ? "-" : `${cell.cpu_percent} %`;
  const texts = [cell.cell, cell.tier, cell.sample, cell.phase, `${Math.round(cell.age_s)} s`, size(cell.memory_bytes)];
  for (const text of texts) row.append(made("td", text, "text"));
  for (const number of [share, cell.commands, cell.requests, cell.refused, cell.signals]) row.append(made("td", String(number), "number"));
  row.append(made("td", cell.command, "text"));
  return row;
}

const MIB = 2 ** 20;
const HEIGHT = 140; // of a plot, in pixels
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const plots = { memory: [[], []], cpu: [[], []] };
const drawn = new Map(); // a plot's name → its chart
function plot(cells) {
  const memory = cells.reduce((sum, cell) => sum + (cell.memory_bytes || 0), 0);
  const cpu = cells.reduce((sum, cell) => sum + (cell.cpu_percent || 0), 0);
  draw("memory", memory / MIB, `${size(memory)} in ${cells.length} cells`);
  draw("cpu", cpu, `${cpu.toFixed(0)} % of one processor in ${cells.length} cells`);
}

function draw(name, value, text) {
  const [times, values] = plots[name];
  times.push(Date.now() / 1000);
  values.push(value);
  if (times.length > POINTS) [times, values].forEach((each) => each.shift());
  if (!drawn.has(name)) drawn.set(name, chart($(name)));
  drawn.get(name).setData(plots[name]);
  $(`${name}-now`).textContent = `${name}: ${text}`;
}

function chart(place) {
  const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_chart, _low, high) => [0, Math.max(high, 1) * 1.05] } },
    axes: [{ ...axis }, { ...axis, size: 60 }],
    series: [{}, { stroke: () => colour("--link"), width: 1.5, points: { show: false } }],
  };
  const one = new uPlot(options, [[], []], place);
  new ResizeObserver(() => one.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  return one;
}

// --- actions

async function act(action, name) {
  const failed = "NOT DONE: use `belljar kill` in a terminal";
  $("acted").textContent = "stopping …";
  try {
    const answer = await fetch(`/actions/${action}`, {
      method: "POST",
      headers: headers(),
      body: JSON.stringify({ name }),
      signal: AbortSignal.timeout(60000),
    });
    const found = await answer.json();
    $("acted").textContent = found.error ? `${failed}: ${found.error}` : found.ok ? "done, with proof" : "NOT PROVEN: see `belljar ps`";
  } catch (error) {
    $("acted").textContent = `${failed} (${error.name})`;
  }
}

function ask(text, then) {
  $("ask-text").textContent = text;
  $("ask").returnValue = "no";
  $("ask").showModal();
  $("ask").onclose = () => $("ask").returnValue === "yes" && then();
}

function stopButton(name, text) {
  const button = made("button", text, "bad");
  button.type = "button";
  button.addEventListener("click", () => ask(`Stop ${name}? Its cells are halted at once, and its samples are void.`, () => act("stop", name)));
  return button;
}

$("hold").addEventListener("click", () => ask("Stop every cell of this store, and refuse new ones?", () => act("hold", "")));
$("release").addEventListener("click", () => act("release", ""));
begin();
