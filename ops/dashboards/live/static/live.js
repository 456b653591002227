"use strict";
// The live page: shows the newest board, ages its facts by the server's clock, and keeps rows where they are.
// All texts are set as text, never as markup.

const KINDS = [
  ["plan", "Plans"],
  ["drain", "Directories being emptied"],
  ["reassignment", "Reassignments"],
  ["disk", "Disk moves"],
];
const OLD_SECONDS = 5;
const SILENT_SECONDS = 4;
const DEAD = ["dead", "cut off", "fenced", "offline", "no worker"];

const byId = (id) => document.getElementById(id);
const state = { board: null, received: 0, skew: 0, opened: new Set(), started: Date.now() };

// --- words and units

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(bytes) < 999.5 || unit === "TB") return `${bytes.toFixed(unit === "B" || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2)} ${unit}`;
    bytes /= 1000;
  }
}
const rate = (value) => (value ? `${size(value)}/s` : "–");
const two = (number) => String(number).padStart(2, "0");

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)}:${two(Math.floor((whole % 3600) / 60))} h`;
  return `${(whole / 86400).toFixed(1)} days`;
}
function span(low, high) {
  if (low === null) return "–";
  if (high === null) return `> ${duration(low)}`;
  const [from, to] = [duration(low), duration(high)];
  if (from === to) return from;
  const unit = from.split(" ")[1];
  return unit === to.split(" ")[1] ? `${from.split(" ")[0]}–${to}` : `${from} – ${to}`;
}
const clock = (epoch) => new Date(epoch * 1000).toISOString().slice(11, 19);
const now = () => Date.now() / 1000 + state.skew;
const age = (at) => { const old = Math.max(0, now() - at); return old < 60 ? `${Math.floor(old)} s` : duration(old); };
const words = (text) => text.replaceAll("_", " ");

// --- elements

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- rows

const rows = new Map(); // key -> the elements of a row

function makeRow(work) {
  const line = make("div", "line row");
  line.tabIndex = 0;
  line.setAttribute("role", "button");
  line.setAttribute("aria-expanded", "false");
  line.dataset.key = work.key;
  line.dataset.testid = "row";
  const part = (name, cell = "div") => line.appendChild(make(cell, name));
  const what = part("what"), phase = part("phase"), done = part("done"), bytes = part("bytes n"), speed = part("rate n"), eta = part("eta n"), why = part("why"), old = part("age n");
  const row = {
    line, speed, eta, old, bytes,
    title: what.appendChild(make("b")), path: what.appendChild(make("small")),
    phase: phase.appendChild(make("span", "pill")),
    fill: done.appendChild(make("span", "track")).appendChild(make("i")), percent: done.appendChild(make("span", "pct")),
    by: why.appendChild(make("b")), why: why.appendChild(make("small")), more: null,
  };
  line.addEventListener("click", () => toggle(work.key));
  rows.set(work.key, row);
  return row;
}

function fill(row, work) {
  put(row.title, work.title);
  put(row.path, work.origin || work.target ? `${work.origin || "…"} → ${work.target || "…"}` : work.detail);
  row.path.title = row.path.textContent;
  put(row.phase, words(work.phase || "open"));
  row.phase.className = `pill${["failed", "cancelling", "rolling_back"].includes(work.phase) ? " warn" : ""}`;
  put(row.percent, work.percent === null ? "–" : `${work.percent >= 100 ? 100 : work.percent.toFixed(1)} %`);
  row.fill.style.width = `${work.percent || 0}%`;
  put(row.bytes, work.bytes_total ? `${size(work.bytes_copied)} of ${size(work.bytes_total)}` : work.bytes_copied ? size(work.bytes_copied) : "–");
  put(row.speed, rate(work.rate));
  put(row.eta, span(work.eta_low, work.eta_high));
  put(row.by, words(work.held_by));
  put(row.why, work.held_why);
  row.why.title = work.held_why;
  row.line.classList.toggle("held", Boolean(work.held_by));
  row.line.classList.toggle("dead", DEAD.includes(words(work.held_by)));
  if (state.opened.has(work.key)) detail(row, work);
}

function detail(row, work) {
  const facts = [
    ["workflow", work.id || "none yet"], ["from", work.origin], ["to", work.target],
    ["held by", work.held_why || words(work.held_by)], ["ends", work.eta_low === null ? "" : `${clock(now() + work.eta_low)}${work.eta_high === null ? " or later" : work.eta_high > work.eta_low ? ` to ${clock(now() + work.eta_high)}` : ""} UTC`],
    ["more", work.detail], ...work.facts.map((fact) => [fact.what, `by ${fact.source}, ${clock(fact.as_of)} UTC (${age(fact.as_of)} ago)`]),
  ].filter(([, text]) => text);
  const list = make("dl", "more");
  list.dataset.testid = "detail";
  for (const [name, text] of facts) {
    const pair = list.appendChild(make("div"));
    pair.appendChild(make("dt", "", name));
    const value = pair.appendChild(make("dd"));
    const ui = state.board.temporal_ui;
    if (name === "workflow" && work.id && ui) {
      const link = value.appendChild(make("a", "", text));
      link.href = `${ui}/workflows/${encodeURIComponent(work.id)}`;
      link.rel = "noreferrer";
    } else value.textContent = text;
  }
  if (row.more) row.more.replaceWith(list);
  row.more = list;
}

function toggle(key) {
  const open = !state.opened.delete(key);
  if (open) state.opened.add(key);
  draw();
}

// --- the page

function filters() {
  const form = byId("filters");
  return { words: form.q.value.toLowerCase().split(/\s+/).filter(Boolean), held: form.held.checked };
}
function matches(work, chosen) {
  if (chosen.held && !work.held_by) return false;
  const text = [work.title, work.origin, work.target, work.id, work.phase, work.held_by, work.held_why, work.detail].join(" ").toLowerCase();
  return chosen.words.every((word) => text.includes(word));
}

const sections = new Map();
function section(kind, title) {
  if (!sections.has(kind)) {
    const card = make("section", "card");
    card.dataset.testid = `section-${kind}`;
    const body = card.appendChild(make("div", "rows"));
    const titles = body.appendChild(make("div", "line titles"));
    const first = titles.appendChild(make("div", "what"));
    const heading = first.appendChild(make("h2", "", title));
    heading.id = `title-${kind}`;
    card.setAttribute("aria-labelledby", heading.id);
    const note = first.appendChild(make("span", "count"));
    for (const [name, label] of [["phase", "phase"], ["done", "copied"], ["bytes n", "bytes"], ["rate n", "rate"], ["eta n", "ends in"], ["why", "held by"], ["age n", "age"]]) titles.appendChild(make("div", name, label)).setAttribute("aria-hidden", "true");
    sections.set(kind, { card, note, body, titles });
  }
  return sections.get(kind);
}

function draw() {
  const board = state.board;
  if (!board) return;
  const chosen = filters();
  let shown = 0, all = 0;
  const live = new Set();
  const place = byId("work");
  for (const [kind, title] of KINDS) {
    const works = board.work[kind], part = section(kind, title);
    const found = works.filter((work) => matches(work, chosen));
    all += works.length + board.left_out[kind];
    shown += found.length;
    part.card.hidden = works.length === 0;
    put(part.note, [found.length < works.length ? `${found.length} of ${works.length} shown` : `${works.length}`, board.left_out[kind] ? `${board.left_out[kind]} more not listed` : ""].filter(Boolean).join(" · "));
    if (part.card.parentNode !== place) place.appendChild(part.card);
    let last = part.titles;
    for (const work of found) {
      live.add(work.key);
      const row = rows.get(work.key) || makeRow(work);
      const open = state.opened.has(work.key);
      if (!open && row.more) { row.more.remove(); row.more = null; }
      fill(row, work);
      row.work = work;
      row.line.setAttribute("aria-expanded", String(open));
      if (last.nextSibling !== row.line) last.after(row.line);
      last = row.line;
      if (row.more) {
        if (last.nextSibling !== row.more) last.after(row.more);
        last = row.more;
      }
    }
  }
  for (const [key, row] of rows) {
    if (live.has(key)) continue;
    row.line.remove();
    if (row.more) row.more.remove();
    rows.delete(key);
  }
  let empty = byId("empty");
  if (!empty) { empty = make("p", "card empty"); empty.id = "empty"; empty.dataset.testid = "empty"; place.prepend(empty); }
  empty.hidden = shown > 0;
  const reading = board.sources.every((source) => source.state === "reading" || source.state === "unused");
  put(empty, reading ? "Reading from the nodes and Temporal …" : all ? "Nothing matches the filter." : "Nothing moves.");
  put(byId("shown"), shown < all ? `${shown} of ${all}` : "");
  totals(board);
  ages();
}

function totals(board) {
  const sum = board.totals;
  put(byId("cluster"), board.cluster);
  put(byId("t-copies"), String(sum.copies));
  const plans = board.work.plan.length + board.left_out.plan;
  put(byId("t-kinds"), `${plans} plan${plans === 1 ? "" : "s"} open`);
  put(byId("t-held"), String(sum.held));
  byId("tile-held").classList.toggle("warn", sum.held > 0);
  put(byId("t-left"), sum.copies ? size(sum.bytes_left) : "–");
  put(byId("t-total"), sum.copies ? `of ${size(sum.bytes_total)}` : "\u00a0");
  put(byId("t-rate"), rate(sum.rate));
  put(byId("t-eta"), span(sum.eta_low, sum.eta_high));
  put(byId("t-end"), sum.eta_low === null ? (sum.copies ? "no end in sight yet" : "\u00a0") : `at ${clock(board.at + sum.eta_low)}${sum.eta_high === null ? " or later" : ""} UTC`);
  const notes = byId("notes");
  if (notes.dataset.text !== JSON.stringify(board.notes)) {
    notes.dataset.text = JSON.stringify(board.notes);
    notes.replaceChildren(...board.notes.map((note) => make("li", "", note)));
  }
  byId("attention").hidden = board.notes.length === 0;
  const list = byId("sources");
  board.sources.forEach((source, index) => {
    let item = list.children[index];
    if (!item) { item = list.appendChild(make("li")); item.appendChild(make("b")); item.appendChild(make("span")); }
    item.className = source.state;
    item.dataset.source = source.name;
    put(item.firstChild, source.name);
    item.title = source.message;
  });
  while (list.children.length > board.sources.length) list.lastChild.remove();
}

function ages() {
  put(byId("clock"), `${clock(now())} UTC`);
  const board = state.board;
  if (!board) return;
  board.sources.forEach((source, index) => {
    const text = { reading: "not read yet", unused: "not used", fresh: source.as_of === null ? "" : `${age(source.as_of)} ago` }[source.state];
    put(byId("sources").children[index].lastChild, text !== undefined ? text : source.as_of === null ? "has never responded" : `stale since ${clock(source.as_of)}`);
  });
  for (const row of rows.values()) {
    const fact = row.work && row.work.facts[0];
    if (!fact) { put(row.old, "–"); continue; }
    const old = now() - fact.as_of > OLD_SECONDS + (row.work.kind === "plan" || row.work.kind === "drain" ? 15 : 0);
    put(row.old, age(fact.as_of));
    row.old.classList.toggle("old", old);
    row.old.title = old ? `stale since ${clock(fact.as_of)} UTC` : "";
    row.line.classList.toggle("aged", old);
  }
}

function link() {
  const quiet = (Date.now() - (state.received || state.started)) / 1000 > SILENT_SECONDS;
  const pill = byId("link"), banner = byId("silent");
  const stale = state.board ? state.board.sources.filter((source) => source.state === "stale") : [];
  pill.className = `pill ${quiet || stale.length ? "bad" : state.board ? "good" : ""}`;
  put(pill, quiet ? "no data" : stale.length ? `${stale.length} stale` : state.board ? "live" : "connecting");
  banner.hidden = !quiet;
  if (quiet) put(banner, state.received ? `No data from the dashboard's server since ${clock(state.received / 1000 + state.skew)} UTC: is rehome dashboard still running? All figures are from then.` : "The dashboard's server does not respond.");
}

function receive(board) {
  state.board = board;
  state.received = Date.now();
  state.skew = board.at - Date.now() / 1000;
  draw();
  link();
  document.body.dataset.boards = String(Number(document.body.dataset.boards || 0) + 1);
}

const events = new EventSource("events");
events.onmessage = (event) => receive(JSON.parse(event.data));
setInterval(() => { ages(); link(); }, 1000);

// --- the trend of the history

async function trend() {
  const found = await fetch("trend.json").then((response) => (response.ok ? response.json() : null)).catch(() => null);
  byId("trend").hidden = !found || !found.days.length;
  if (byId("trend").hidden) return;
  const sum = (values) => values.reduce((total, value) => total + value, 0), met = sum(found.met), counted = met + sum(found.missed);
  put(byId("trend-as-of"), `${found.days[0]} to ${found.days.at(-1)} · as of the report of ${new Date(found.as_of * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`);
  const share = counted < 20 ? "too few to say" : counted === met ? "100 %" : `${(Math.floor((1000 * met) / counted) / 10).toFixed(1)} %`;
  byId("trend-figures").replaceChildren(...[["moves", sum(found.moves)], ["done", sum(found.moved)], ["failed", sum(found.failed)], ["deadlines met", counted ? `${share} (${met} of ${counted})` : "none counted"]].map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", String(value)));
    return pair;
  }));
  const most = Math.max(1, ...found.moves), wide = 300 / found.days.length, bars = byId("trend-bars");
  bars.setAttribute("viewBox", "0 0 300 40");
  bars.replaceChildren(...found.days.flatMap((_, day) => [["done-bar", found.moved[day], 0], ["failed-bar", found.failed[day], found.moved[day]]].map(([name, value, below]) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect"), tall = (40 * value) / most;
    for (const [key, set] of Object.entries({ x: day * wide, width: Math.max(0.5, wide - 1.5), y: 40 - tall - (40 * below) / most, height: tall, class: name })) bar.setAttribute(key, set);
    return bar;
  })));
}
trend();
setInterval(trend, 60_000);

// --- theme, filter, keys

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
function theme() {
  const on = chosenTheme === null ? dark.matches : chosenTheme === "dark";
  document.documentElement.dataset.theme = on ? "dark" : "light";
  put(byId("theme"), on ? "Light" : "Dark");
}
function switchTheme() {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  theme();
}
byId("theme").addEventListener("click", switchTheme);
dark.addEventListener("change", theme);
theme();

function remember() {
  const chosen = filters(), query = new URLSearchParams();
  if (byId("q").value) query.set("q", byId("q").value);
  if (chosen.held) query.set("held", "1");
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  draw();
}
const given = new URLSearchParams(location.search);
byId("q").value = given.get("q") || "";
byId("only-held").checked = given.get("held") === "1";
byId("filters").addEventListener("input", remember);
byId("filters").addEventListener("submit", (event) => event.preventDefault());

function keys() {
  byId("keys").hidden = !byId("keys").hidden;
  byId("keys-button").setAttribute("aria-expanded", String(!byId("keys").hidden));
}
byId("keys-button").addEventListener("click", keys);

function step(by) {
  const lines = [...document.querySelectorAll(".row")];
  const at = lines.indexOf(document.activeElement);
  const next = lines[at === -1 ? (by > 0 ? 0 : lines.length - 1) : Math.min(lines.length - 1, Math.max(0, at + by))];
  if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = document.activeElement === byId("q");
  if (event.key === "Escape" && typing) { byId("q").value = ""; byId("q").blur(); remember(); return; }
  if (typing) return;
  const row = document.activeElement.closest ? document.activeElement.closest(".row") : null;
  const actions = {
    j: () => step(1), ArrowDown: () => row && step(1), k: () => step(-1), ArrowUp: () => row && step(-1), t: switchTheme, "?": keys,
    "/": () => byId("q").focus(), h: () => { byId("only-held").checked = !byId("only-held").checked; remember(); },
    Enter: () => row && toggle(row.dataset.key), " ": () => row && toggle(row.dataset.key),
  };
  const action = actions[event.key];
  if (!action || ((event.key === "Enter" || event.key === " " || event.key.startsWith("Arrow")) && !row)) return;
  event.preventDefault();
  action();
});
