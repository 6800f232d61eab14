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

// Of a terminal's output, what it obeys is in the text: here it is named, as all else was before.
const named = (text) =>
  text.replaceAll("\r\n", "\n").replace(/[\x07\x08\r\x1b]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);

function bodies(notes, count, found) {
  const parts = [];
  if (notes.length) parts.push(made("pre", notes.join("\n"), "text"));
  for (const [name, text, note] of found) {
    parts.push(made("p", `${name}: ${note}`, "quiet"), made("pre", named(text), "text"));
  }
  if (count > found.length) {
    parts.push(made("p", `${count - found.length} more in the ledger`, "quiet"));
  }
  return parts;
}

function row([number, at, group, what, outcome, bad, guest, notes, count, , found]) {
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

// --- a player: commands and output by their times; a pause takes two seconds at most

const HISTORY = 1000; // lines above the screen
const ESCAPE = /\x1b(?:\[([\x30-\x3f]*)[\x20-\x2f]*([\x40-\x7e])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -\/]+[0-~]|([0-OQ-WYZ\\`-~]))/y;
const BEGUN = /\x1b(?:\[[\x20-\x3f]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -\/]*)$/y;

// A terminal of text alone: its cursor, lines and what clears them. Colours, scroll regions, wide
// characters and the like are dropped.
function screenOf(cols, rows) {
  let [lines, x, y, saved, other, rest] = [[], 0, 0, [0, 0], null, ""];
  const within = (value, most) => Math.max(0, Math.min(value, most));
  let top = 0; // the first line of the screen
  const line = () => {
    while (lines.length <= y) lines.push([]);
    while (lines[y].length < x) lines[y].push(" ");
    return lines[y];
  };
  const feed = () => {
    y += 1;
    if (y - top >= rows) top += 1;
    if (top > HISTORY) (lines.shift(), (top -= 1), (y -= 1));
  };
  const put = (char) => {
    if (x >= cols) (x = 0, feed());
    line()[x] = char;
    x += 1;
  };
  const clear = (from, to) => {
    for (let at = from; at < to && at < lines.length; at += 1) lines[at] = [];
  };
  const obey = (words, final) => {
    const given = words.replace(/^[?>=!]/, "").split(";").map((each) => Number.parseInt(each, 10) || 0);
    const [first, second = 0] = given;
    const count = Math.min(first || 1, 1000);
    const kept = line();
    if (final === "A") y = Math.max(top, y - count);
    else if (final === "B") y = Math.min(top + rows - 1, y + count);
    else if (final === "C") x = within(x + count, cols - 1);
    else if (final === "D") x = within(x - count, cols - 1);
    else if (final === "G") x = within(count - 1, cols - 1);
    else if (final === "d") y = top + within(count - 1, rows - 1);
    else if (final === "H" || final === "f") [y, x] = [top + within(count - 1, rows - 1), within((second || 1) - 1, cols - 1)];
    else if (final === "K") lines[y] = first === 1 ? kept.fill(" ", 0, x + 1) : first === 2 ? [] : kept.slice(0, x);
    else if (final === "J" && first === 1) (clear(top, y), kept.fill(" ", 0, x + 1));
    else if (final === "J" && first) clear(top, top + rows);
    else if (final === "J") ((lines[y] = kept.slice(0, x)), clear(y + 1, top + rows));
    else if (final === "P") kept.splice(x, count);
    else if (final === "X") kept.fill(" ", x, x + count);
    else if (final === "@") (kept.splice(x, 0, ...Array(count).fill(" ")), kept.splice(cols));
    else if (final === "s") saved = [x, y - top];
    else if (final === "u") [x, y] = [saved[0], top + saved[1]];
    else if ((final === "h" || final === "l") && /^\?(47|1047|1049)$/.test(words)) {
      if (final === "h" && !other) [other, lines, x, y, top] = [[lines, x, y, top], [], 0, 0, 0];
      else if (final === "l" && other) ([lines, x, y, top] = other), (other = null);
    }
  };
  const write = (text) => {
    text = rest + text;
    rest = "";
    for (let at = 0; at < text.length; ) {
      const char = String.fromCodePoint(text.codePointAt(at));
      if (char === "\x1b") {
        ESCAPE.lastIndex = at;
        const found = ESCAPE.exec(text);
        BEGUN.lastIndex = at;
        if (!found && text.length - at < 4096 && BEGUN.test(text)) return void (rest = text.slice(at));
        if (found?.[2]) obey(found[1], found[2]);
        else if (found?.[3] === "c") (clear(top, top + rows), (x = 0), (y = top));
        else if (found?.[3] === "7") saved = [x, y - top];
        else if (found?.[3] === "8") [x, y] = [saved[0], top + saved[1]];
        else if (found?.[3] === "M") y = Math.max(top, y - 1);
        at += found ? found[0].length : 1;
        continue;
      }
      if (char === "\r") x = 0;
      else if (char === "\n") feed();
      else if (char === "\b") x = Math.max(0, Math.min(x, cols) - 1);
      else if (char === "\t") x = Math.min(cols - 1, (Math.floor(x / 8) + 1) * 8);
      else if (char !== "\x07") put(char);
      at += char.length;
    }
  };
  const resize = (wide, high) => {
    [cols, rows] = [Math.max(1, Math.min(wide || 100, 1000)), Math.max(1, Math.min(high || 30, 500))];
    top = Math.max(top, y - rows + 1);
  };
  // Our own lines: whatever a command left unfinished hides none of them, and no later one clears
  // them: each begins with a screen of its own below
  const say = (text) => {
    rest = "";
    if (other) obey("?1049", "l");
    y = Math.max(y, lines.length - 1);
    if (lines[y]?.length) feed();
    x = 0;
    write(text);
    top = y;
    while (top > HISTORY) (lines.shift(), (top -= 1), (y -= 1));
  };
  return { write, say, resize, text: () => lines.map((each) => each.join("").trimEnd()).join("\n") };
}

function framesOf(entries) {
  const frames = [];
  let day = 0;
  let before = 0;
  for (const [, at, group, what, outcome, , , , , sizes, found] of entries) {
    if (group !== "command") continue;
    const [hours, minutes, seconds] = at.split(":").map(Number);
    const clock = hours * 3600 + minutes * 60 + seconds;
    if (day + clock < before - 43200) day += 86400;
    const began = day + clock;
    before = began;
    const shown = (text) => (sizes.length ? text : text.replaceAll("\n", "\r\n"));
    for (const [after, ...size] of sizes) frames.push([began + after, "resize", ...size]);
    frames.push([began, "say", `$ ${what.replaceAll("\n", "\r\n")}\r\n`]);
    let ended = began;
    for (const [name, text, , times] of found) {
      if (name !== "stdout" && name !== "stderr") continue;
      let from = 0;
      for (const [after, share] of times) {
        const to = Math.max(from, Math.round(text.length * share));
        if (to > from) frames.push([began + after, "write", shown(text.slice(from, to))]);
        from = to;
        ended = Math.max(ended, began + after);
      }
    }
    frames.push([ended, "say", `[${outcome}]\r\n`]);
  }
  return frames.sort(([a], [b]) => a - b);
}

function playerOf(frames) {
  const player = made("details", "", "player");
  const screen = made("pre", "", "text");
  const play = made("button", "Play");
  const label = made("label", "Position ");
  const position = made("input");
  Object.assign(play, { type: "button" });
  screen.tabIndex = 0;
  screen.setAttribute("role", "region");
  screen.setAttribute("aria-label", "Terminal");
  Object.assign(position, { type: "range", min: 0, max: frames.length, value: 0 });
  label.append(position);
  let timer = 0;
  let terminal = null;
  let played = 0;
  const show = () => {
    if (!terminal || position.valueAsNumber < played) [terminal, played] = [screenOf(100, 30), 0];
    for (; played < position.valueAsNumber; played += 1) {
      const [, act, ...given] = frames[played];
      terminal[act](...given);
    }
    screen.textContent = terminal.text();
    screen.scrollTop = screen.scrollHeight;
    const at = frames[position.valueAsNumber - 1];
    const passed = at ? Math.round(at[0] - frames[0][0]) : 0;
    position.setAttribute("aria-valuetext", `${passed} seconds`);
  };
  const stop = () => {
    clearTimeout(timer);
    timer = 0;
    play.textContent = "Play";
  };
  const step = () => {
    position.value = position.valueAsNumber + 1;
    show();
    const at = position.valueAsNumber;
    if (at >= frames.length) return stop();
    timer = setTimeout(step, 1000 * Math.min(2, frames[at][0] - frames[at - 1][0]));
  };
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (position.valueAsNumber >= frames.length) position.value = 0;
    play.textContent = "Pause";
    step();
  });
  position.addEventListener("input", () => (stop(), show()));
  player.append(made("summary", "Replay its commands"), play, label, screen);
  return player;
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
  const frames = framesOf(entries);
  if (frames.length) place.append(playerOf(frames));
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

// --- what happened when (uPlot, © Leon Sorokin, MIT licence)

function plot(figure) {
  const { times, counts, width_s } = JSON.parse($("activity").textContent);
  const series = Object.values(counts);
  times.push(times.at(-1) + width_s); // the end of the last step
  for (const each of series) each.push(each.at(-1));
  const isLong = times.at(-1) - times[0] > 86400;
  const clock = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(isLong ? 5 : 11, isLong ? 16 : 19);
  const colour = (name) => () => getComputedStyle(figure).getPropertyValue(name);
  const looks = {
    command: { stroke: colour("--link"), width: 2 },
    request: { stroke: colour("--good"), width: 1.5, dash: [6, 3] },
    refusal: { stroke: colour("--bad"), width: 2, dash: [2, 2] },
    model: { stroke: colour("--doubt"), width: 1.5, dash: [10, 3, 2, 3] },
  };
  const place = made("div");
  figure.prepend(place);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", "Chart of the counts that the caption names");
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const counted = [...Array(9).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
  const short = new Intl.NumberFormat("en", { notation: "compact" });
  const steps = uPlot.paths.stepped({ align: 1 });
  const size = () => ({ width: figure.clientWidth, height: 140 });
  const options = {
    ...size(),
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_chart, _low, high) => [0, Math.max(high, 1) * 1.1] } },
    axes: [{ ...axis, space: 90, incrs: [1, 5, 15, 60, 300, 900, 3600, 10800, 43200, 86400, 604800, 2592000, 7776000, 31536000], values: (_chart, at) => at.map(clock) }, { ...axis, size: 45, incrs: counted, values: (_chart, at) => at.map((each) => short.format(each)) }],
    series: [{}, ...Object.keys(counts).map((kind) => ({ ...looks[kind], paths: steps, points: { show: false } }))],
  };
  const chart = new uPlot(options, [times, ...series], place);
  new ResizeObserver(() => chart.setSize(size())).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw());
}
if ($("plot")) plot($("plot"));
