"use strict";
// What all pages of the site share: the data files, units, filters in the URL, tables. Texts are set as text, never as markup.

const rehome = { packed: {}, receive(name, text) { this.packed[name] = text; } };
window.rehome = rehome;

// --- data

async function inflate(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

function column(packed) {
  if (packed.of) return packed.at.map((at) => (at < 0 ? null : packed.of[at]));
  if (!packed.plus) return packed.is;
  let sum = 0;
  return packed.plus.map((plus) => (sum += plus));
}

/** A table by column: `table.topic[row]`; `table.rows` is their number. */
async function tableNamed(name) {
  if (!rehome.packed[name]) return { rows: 0 };
  const value = await inflate(rehome.packed[name]);
  const table = { rows: value.rows };
  for (const [key, packed] of Object.entries(value.columns)) table[key] = column(packed);
  return table;
}
function range(count) { return Array.from({ length: count }, (_, index) => index); }

// --- units

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB", "TB", "PB"]) {
    if (Math.abs(bytes) < 999.5 || unit === "PB") return `${bytes.toFixed(unit === "B" || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2)} ${unit}`;
    bytes /= 1000;
  }
}
const rate = (value) => (value === null || value === undefined ? "–" : `${size(value)}/s`);
const two = (number) => String(number).padStart(2, "0");
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds >= 0.00995 ? 0 : 1)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds >= 9.995 ? 1 : 2)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${(whole / 86400).toFixed(1)} days`;
}
/** A share from 0 to 1; it never rounds up to 100 %. */
const percent = (share) => (share === null || share === undefined ? "–" : share >= 1 ? "100 %" : `${(Math.floor(share * 1000) / 10).toFixed(1)} %`);
const iso = (epoch) => new Date(epoch * 1000).toISOString();
const stamp = (epoch) => (epoch === null || epoch === undefined ? "–" : `${iso(epoch).slice(0, 10)} ${iso(epoch).slice(11, 19)}`);
const day = (epoch) => iso(epoch).slice(0, 10);
const daysKnown = new Map();
/** The day of a time; each day is written once. */
function dayOf(epoch) {
  const number = Math.floor(epoch / 86400);
  if (!daysKnown.has(number)) daysKnown.set(number, day(epoch));
  return daysKnown.get(number);
}
const words = (text) => (text === null || text === undefined ? "–" : String(text).replaceAll("_", " "));
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
/** Numbers in order: many at once, without a function that compares two. */
const inOrder = (values) => Float64Array.from(values).sort();
function quantile(sorted, share) {
  if (!sorted.length) return null;
  const place = share * (sorted.length - 1), low = Math.floor(place);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (place - low);
}

// --- shares: below so many events a share says nothing

const FEWEST = 20;
const TOO_FEW = "too few to say";
function wilson(good, total) {
  if (!total) return [0, 1];
  const z = 1.959963984540054, share = good / total, middle = (share + (z * z) / (2 * total)) / (1 + (z * z) / total);
  const half = (z / (1 + (z * z) / total)) * Math.sqrt((share * (1 - share)) / total + (z * z) / (4 * total * total));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}
function attained(met, missed) {
  const total = met + missed;
  if (total < FEWEST) return { share: null, text: total ? TOO_FEW : "–", more: total ? `${met} of ${total} met; a share needs ${FEWEST}` : "no deadline counted" };
  const [low, high] = wilson(met, total);
  return { share: met / total, text: percent(met / total), more: `${met.toLocaleString("en")} of ${total.toLocaleString("en")} · 95 % interval ${percent(low)} to ${percent(high)}` };
}

// --- elements

const byId = (id) => document.getElementById(id);
function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}
function card(title, note, id) {
  const section = make("section", "card");
  const head = section.appendChild(make("div", "card-head"));
  const heading = head.appendChild(make("h2", "", title));
  heading.id = `h-${id}`;
  section.setAttribute("aria-labelledby", heading.id);
  section.dataset.testid = id;
  head.appendChild(make("span", "soft", `as of ${stamp(rehome.about.as_of)} UTC`));
  if (note) section.appendChild(make("p", "note", note));
  return section;
}
function tiles(items) {
  const list = make("dl", "tiles");
  for (const { name, value, more, kind, id } of items) {
    const tile = list.appendChild(make("div", `tile ${kind || ""}`));
    tile.appendChild(make("dt", "", name));
    const value_ = tile.appendChild(make("dd"));
    value_.appendChild(make("strong", "", value)).dataset.testid = id || name;
    value_.appendChild(make("small", "", more || "\u00a0"));
  }
  return list;
}
function pill(text, kind) { return make("span", `pill ${kind || ""}`, words(text)); }
const KINDS_OF = { done: "good", moved: "good", in_place: "good", yes: "good", failed: "bad", "timed out": "bad", terminated: "bad", no: "bad", open: "", cancelled: "", superseded: "" };
const mark = (text) => pill(text, KINDS_OF[text] || "");

const MOST_LINES = 200;
/** A table. `columns`: [title, cell of a row, class]; a cell is a text or an element. The first column names the row. */
function listing(id, columns, rows, none = "None.") {
  const place = make("div");
  const scroll = place.appendChild(make("div", "scroll"));
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", words(id));
  const table = scroll.appendChild(make("table"));
  table.dataset.testid = `table-${id}`;
  const head = table.appendChild(make("thead")).appendChild(make("tr"));
  for (const [title, , name] of columns) head.appendChild(make("th", name || "", title)).scope = "col";
  const body = table.appendChild(make("tbody"));
  for (const row of rows.slice(0, MOST_LINES)) {
    const line = body.appendChild(make("tr"));
    columns.forEach(([, cell, name], place_) => {
      const made = line.appendChild(make(place_ ? "td" : "th", name || ""));
      if (!place_) made.scope = "row";
      const value = cell(row);
      if (value instanceof Node) made.appendChild(value);
      else made.textContent = value === null || value === undefined ? "–" : value;
    });
  }
  if (!rows.length) { const cell = body.appendChild(make("tr")).appendChild(make("td", "soft", none)); cell.colSpan = columns.length; }
  if (rows.length > MOST_LINES) place.appendChild(make("p", "more", `${(rows.length - MOST_LINES).toLocaleString("en")} more: narrow the filters, or query the tables.`));
  return place;
}
/** The table behind a chart. */
function behind(id, columns, rows) {
  const details = make("details");
  details.appendChild(make("summary", "", "Show as a table"));
  details.appendChild(listing(id, columns, rows));
  return details;
}

// --- filters in the URL

const chosen = new URLSearchParams(location.search);
function choose(name, value) {
  if (value === null || value === "") chosen.delete(name);
  else chosen.set(name, value);
  const query = chosen.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname.split("/").pop());
  links();
  draw();
}
function links() {
  const kept = new URLSearchParams([...chosen].filter(([name]) => ["node", "kind", "topic", "period"].includes(name)));
  for (const link of document.querySelectorAll("nav a")) {
    const page = link.getAttribute("href").split("?")[0];
    link.setAttribute("href", kept.toString() ? `${page}?${kept}` : page);
  }
}
/** Add a select to the filters; `options`: [value, text]. The first one is the default, and not in the URL. */
function select(name, label, options) {
  const field = byId("filters").appendChild(make("label", "", label));
  const made = field.appendChild(make("select"));
  made.name = name;
  for (const [value, text] of options) made.appendChild(make("option", "", text)).value = value;
  made.value = chosen.get(name) || options[0][0];
  if (made.selectedIndex < 0) made.selectedIndex = 0;
  made.addEventListener("change", () => choose(name, made.value === options[0][0] ? null : made.value));
  return made;
}
function typed(name, label, hint) {
  const field = byId("filters").appendChild(make("label", "", label));
  const made = field.appendChild(make("input"));
  made.type = "search";
  made.name = name;
  made.placeholder = hint;
  made.value = chosen.get(name) || "";
  made.addEventListener("input", () => choose(name, made.value));
}
const PERIODS = [["", "all"], ["1", "1 day"], ["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];
function sinceOf() { return Number(chosen.get("period")) ? rehome.about.as_of - 86400 * Number(chosen.get("period")) : -Infinity; }

/** The filters of moves, once. */
function moveFilters(moves) {
  const distinct = (values) => [...new Set(values.filter((value) => value !== null))];
  select("period", "started within", PERIODS);
  select("node", "node", [["", "all"], ...distinct(moves.node || []).sort((a, b) => a - b).map((node) => [String(node), String(node)])]);
  select("kind", "kind", [["", "all"], ...distinct(moves.kind || []).sort().map((kind) => [kind, kind])]);
  typed("topic", "topic", "name or part of it");
  byId("filters").appendChild(make("span", "count")).id = "count";
}
/** The rows of moves that pass the filters, the oldest first. */
function movesChosen(moves) {
  const since = sinceOf(), node = chosen.get("node"), kind = chosen.get("kind"), topic = (chosen.get("topic") || "").toLowerCase();
  const rows = range(moves.rows).filter((row) => moves.started[row] >= since && (!node || String(moves.node[row]) === node || String(moves.from_node[row]) === node)
    && (!kind || moves.kind[row] === kind) && (!topic || (moves.topic[row] || "").toLowerCase().includes(topic)));
  const label = byId("count");
  if (label) label.textContent = `${count(rows.length, "move")}${rehome.about.moves_total > moves.rows ? ` of the newest ${moves.rows.toLocaleString("en")}; ${(rehome.about.moves_total - moves.rows).toLocaleString("en")} older ones are in the tables` : ""}`;
  return rows;
}
const DONE = ["moved", "in_place"], FAILED = ["failed", "timed out", "terminated"], GONE = ["cancelled", "superseded"];
const replica = (moves, row) => (moves.topic[row] === null ? "–" : `${moves.topic[row]}-${moves.partition[row]}`);
function places(moves, row) {
  const disk = moves.kind[row] === "disk" || moves.from_node[row] === null;
  const from = disk ? `node ${moves.node[row] ?? "?"}: ${moves.source[row] || "…"}` : `node ${moves.from_node[row]}`;
  return [from, disk ? moves.directory[row] || "…" : `node ${moves.node[row] ?? "?"}${moves.directory[row] ? `: ${moves.directory[row]}` : ""}`];
}
function moveLink(moves, row) {
  const link = make("a", "", replica(moves, row));
  link.href = `move.html?row=${row}&started=${moves.started[row]}`;
  return link;
}
function workflowId(moves, row, name = "run") {
  const text = moves[name][row] || "";
  if (text.startsWith("=")) return text.slice(1);
  return text.replace("/%", () => `/${replica(moves, row)}`).replace("/#/", () => `/${moves.node[row]}/`);
}

/** A link to a run in Temporal's UI, or its text where the site was written without the UI's address. */
function runLink(namespace, id, run = null, text = id) {
  const ui = rehome.about.temporal_ui, made = make(ui && id ? "a" : "span", "", text);
  if (!ui || !id) return made;
  made.href = `${ui}/namespaces/${encodeURIComponent(namespace)}/workflows/${encodeURIComponent(id)}${run ? `/${encodeURIComponent(run)}` : ""}`;
  made.rel = "noreferrer";
  return made;
}
/** The column of a table that links its rows' runs, where there is a UI to link. `of`: namespace, id, run. */
const runColumn = (of) => (rehome.about.temporal_ui ? [["run", (row) => runLink(...of(row), "Temporal")]] : []);
const moveRun = (moves) => runColumn((row) => [moves.namespace[row], workflowId(moves, row), null]);

// --- theme and keys

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = null;
function paint() {
  const on = theme === null ? dark.matches : theme === "dark";
  document.documentElement.dataset.theme = on ? "dark" : "light";
  byId("theme").textContent = on ? "Light" : "Dark";
}
function switchTheme() { theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; paint(); }
byId("theme").addEventListener("click", switchTheme);
dark.addEventListener("change", paint);
paint();
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(document.activeElement.tagName)) return;
  const pages = [...document.querySelectorAll("nav a")];
  if (event.key === "t") switchTheme();
  else if (event.key === "/") { const field = document.querySelector("#filters input, #filters select"); if (field) { field.focus(); event.preventDefault(); } }
  else if (Number(event.key) >= 1 && Number(event.key) <= pages.length) pages[Number(event.key) - 1].click();
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
