"use strict";
// The pages: each draws itself from its tables and the filters in the URL.

const tables = {};
const charts = [];
function add(...parts) { for (const part of parts) byId("page").appendChild(part); }
function drawn(place) { charts.push(place); return place; }

const OUTCOMES = [["done", "done", "f2", DONE], ["open", "open", "f1", ["open"]], ["cancelled", "cancelled", "f6", GONE], ["failed", "failed", "f4", FAILED]];
const SPENT = [["queued", "queued", "f6"], ["copying", "copying", "f1"], ["throttled", "held by a limit", "f3"], ["stalled", "held by a slow disk", "f4"]];

// --- fleet

function needsAttention(moves, rows) {
  const why = (row) => moves.message[row] || moves.stall[row] || (moves.sla[row] === "no" ? `past its deadline: ${duration(moves.took[row])} of ${duration(moves.deadline[row])}` : words(moves.reason[row]));
  const found = rows.filter((row) => FAILED.includes(moves.outcome[row]) || moves.sla[row] === "no" || (moves.outcome[row] === "open" && moves.stall[row])).reverse();
  const section = card("Needs attention", "Open moves that are held or past their deadline, and moves that failed or were late; the latest first.", "attention");
  section.appendChild(listing("attention", [
    ["replica", (row) => moveLink(moves, row)], ["outcome", (row) => mark(moves.outcome[row])], ["met SLA", (row) => mark(moves.sla[row])],
    ["started (UTC)", (row) => stamp(moves.started[row])], ["took", (row) => duration(moves.took[row]), "n"], ["deadline", (row) => duration(moves.deadline[row]), "n"], ...moveRun(moves), ["why", why, "why"],
  ], found, "No move failed, is late or is held."));
  return section;
}

function allMoves(moves, rows) {
  const section = card("Moves", "The latest first. A move's name leads to its page.", "moves");
  section.appendChild(listing("moves", [
    ["replica", (row) => moveLink(moves, row)], ["from", (row) => places(moves, row)[0], "path"], ["to", (row) => places(moves, row)[1], "path"], ["outcome", (row) => mark(moves.outcome[row])],
    ["met SLA", (row) => mark(moves.sla[row])], ["started (UTC)", (row) => stamp(moves.started[row])], ["took", (row) => duration(moves.took[row]), "n"], ["size", (row) => size(moves.bytes[row]), "n"],
    ["mean rate", (row) => rate(moves.rate[row]), "n"], ["limit", (row) => rate(moves.limit[row]), "n"], ["attempts", (row) => moves.attempts[row], "n"], ["swap lock", (row) => duration(moves.locked[row]), "n"], ...moveRun(moves),
  ], rows.slice().reverse(), "No moves."));
  return section;
}

function byNode(moves, rows) {
  const groups = new Map();
  for (const row of rows) { const node = moves.node[row] ?? "?"; if (!groups.has(node)) groups.set(node, []); groups.get(node).push(row); }
  const took = new Map([...groups].map(([node, found]) => [node, inOrder(found.filter((row) => DONE.includes(moves.outcome[row])).map((row) => moves.took[row]))]));
  const section = card("By node", "The node that gets the replicas.", "by-node");
  const of = (found, names) => found.filter((row) => names.includes(moves.outcome[row])).length;
  section.appendChild(listing("nodes", [
    ["node", ([node]) => node], ["moves", ([, found]) => found.length, "n"], ["done", ([, found]) => of(found, DONE), "n"], ["open", ([, found]) => of(found, ["open"]), "n"], ["failed", ([, found]) => of(found, FAILED), "n"],
    ["deadlines met", ([, found]) => attained(found.filter((row) => moves.sla[row] === "yes").length, found.filter((row) => moves.sla[row] === "no").length).text, "n"],
    ["copied", ([, found]) => size(sum(found.map((row) => moves.bytes[row]))), "n"],
    ["median time", ([node]) => duration(quantile(took.get(node), 0.5)), "n"],
    ["95 %", ([node]) => duration(quantile(took.get(node), 0.95)), "n"],
  ], [...groups].sort((a, b) => a[0] - b[0])));
  return section;
}

function perDay(moves, rows) {
  const section = card("Moves per day", "By the day on which they started, and how they ended.", "per-day");
  if (!rows.length) { section.appendChild(make("p", "empty", "No moves.")); return section; }
  const days = daysBetween(day(moves.started[rows[0]]), day(moves.started[rows.at(-1)])), first = Math.floor(moves.started[rows[0]] / 86400);
  const which = new Map(OUTCOMES.flatMap(([, , , names], index) => names.map((name) => [name, index])));
  const series = OUTCOMES.map(([, name, color]) => ({ name, color, values: days.map(() => 0) }));
  for (const row of rows) {
    const one = which.get(moves.outcome[row]);
    if (one !== undefined) series[one].values[Math.floor(moves.started[row] / 86400) - first] += 1;
  }
  drawn(stacked(section, "Moves per day by outcome", days, series, (value) => value.toLocaleString("en")));
  section.appendChild(behind("per-day", [["day", (index) => days[index]], ...series.map((one) => [one.name, (index) => one.values[index], "n"])], range(days.length).reverse()));
  return section;
}

function timeSpent(moves, rows) {
  const section = card("Where the time of copies went", "All moves together, by node: waiting for a copying thread, copying, and held back.", "spent");
  const groups = new Map();
  for (const row of rows) {
    const name = `node ${moves.node[row] ?? "?"}`;
    if (!groups.has(name)) groups.set(name, { name, parts: { queued: 0, copying: 0, throttled: 0, stalled: 0 } });
    for (const [key] of SPENT) groups.get(name).parts[key] += moves[key][row] || 0;
  }
  const found = [...groups.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  if (!found.length) { section.appendChild(make("p", "empty", "No moves.")); return section; }
  drawn(shares(section, "Where the time of copies went, by node", found, SPENT, duration));
  section.appendChild(behind("spent", [["node", (row) => row.name], ...SPENT.map(([key, name]) => [name, (row) => duration(row.parts[key]), "n"])], found));
  return section;
}

function fleet() {
  const moves = tables.moves, rows = movesChosen(moves), of = (names) => rows.filter((row) => names.includes(moves.outcome[row]));
  const sla = attained(rows.filter((row) => moves.sla[row] === "yes").length, rows.filter((row) => moves.sla[row] === "no").length);
  const done = of(DONE), open = of(["open"]), failed = of(FAILED), took = inOrder(done.map((row) => moves.took[row]));
  const late = rows.filter((row) => moves.sla[row] === "no");
  add(tiles([
    { name: "deadlines met", value: sla.text, more: sla.more, id: "attainment", kind: "" },
    { name: "moves done", value: done.length.toLocaleString("en"), more: `of ${rows.length.toLocaleString("en")}`, id: "done" },
    { name: "open", value: open.length.toLocaleString("en"), more: `${open.filter((row) => moves.sla[row] === "no").length} past their deadline`, id: "open" },
    { name: "failed", value: failed.length.toLocaleString("en"), more: `${late.length.toLocaleString("en")} late or failed by their SLA`, kind: failed.length ? "bad" : "", id: "failed" },
    { name: "copied", value: size(sum(rows.map((row) => moves.bytes[row]))), more: "bytes in the copies", id: "bytes" },
    { name: "time until in place", value: duration(quantile(took, 0.5)), more: `median · 95 %: ${duration(quantile(took, 0.95))}`, id: "median" },
    { name: "longest swap lock", value: duration(rows.reduce((most, row) => Math.max(most, moves.locked[row] || 0), 0)), more: "appends to one partition wait so long", id: "locked" },
  ]));
  const pair = make("div", "pair");
  pair.append(perDay(moves, rows), timeSpent(moves, rows));
  add(pair, needsAttention(moves, rows), byNode(moves, rows), allMoves(moves, rows));
}

// --- SLA and budget

const millionths = (value) => (value === null ? TOO_FEW : `${value < 0 ? "−" : ""}${(Math.floor(Math.abs(value) / 1e3) / 10).toFixed(1)} %`);
const burned = (value) => (value === null ? TOO_FEW : `${(Math.floor(value / 1e5) / 10).toFixed(1)} ×`);
const BURNS = [["1 hour", "burn_1h"], ["5 minutes", "burn_5m"], ["6 hours", "burn_6h"], ["30 minutes", "burn_30m"], ["3 days", "burn_3d"]];

/** The SLOs as of now, and the budget of one over time: gold's burn_rate. */
function objectives() {
  const all = tables.slos;
  if (!all.rows) return;
  const newest = all.day.at(-1), now = range(all.rows).filter((row) => all.day[row] === newest), few = (row) => all.good[row] + all.bad[row] < FEWEST;
  const share = (row) => (few(row) ? TOO_FEW : millionths(all.share[row])), kind = (row) => (all.alarm[row] === "page" ? "bad" : all.alarm[row] ? "warn" : "");
  const figures = [
    ["good", (row) => all.good[row].toLocaleString("en"), "n"], ["bad", (row) => all.bad[row].toLocaleString("en"), "n"], ["share", share, "n"],
    ["95 % interval", (row) => (few(row) || all.low[row] === null ? "–" : `${millionths(all.low[row])} to ${millionths(all.high[row])}`), "n"],
    ["budget left", (row) => millionths(all.left[row]), "n"], ...BURNS.map(([name, key]) => [`burn, ${name}`, (row) => burned(all[key][row]), "n"]),
  ];
  const first = card("Objectives", `What each SLO's window came to. A burn rate of 1 × spends the budget in its window. Below ${FEWEST} events a figure says nothing.`, "objectives");
  first.appendChild(listing("objectives", [
    ["SLO", (row) => all.slo[row]], ["objective", (row) => `${millionths(all.objective[row])} of ${all.weight[row]} in ${all.window[row]} days`],
    ["alarm", (row) => (all.alarm[row] ? pill(all.alarm[row], kind(row)) : "–")], ...figures,
  ], now));
  const names = now.map((row) => all.slo[row]), name = names.includes(chosen.get("slo")) ? chosen.get("slo") : names[0];
  const rows = range(all.rows).filter((row) => all.slo[row] === name), days = rows.map((row) => all.day[row]), left = rows.map((row) => (all.left[row] === null ? null : all.left[row] / 1e6));
  const second = card(`Budget of: ${name}`, "As of the end of each day; below zero more than the budget was spent. Grey days have too few events.", "objective-budget");
  drawn(lined(second, `Budget of ${name} by day`, days, { values: left, least: Math.floor(Math.max(Math.min(0, ...left.filter((one) => one !== null)), -3) * 4) / 4, most: 1, marks: [{ value: 0, name: "spent" }], format: (one) => `${one < 0 ? "−" : ""}${Math.abs(Math.round(one * 100))} %`, color: "l2", title: (index) => millionths(all.left[rows[index]]) }));
  second.appendChild(behind("objective-budget", [["day", (row) => all.day[row]], ...figures, ["alarm", (row) => all.alarm[row]]], rows.slice().reverse()));
  add(first, second);
}

function sla() {
  objectives();
  const all = tables.days, scope = (chosen.get("scope") || "all:").split(":"), objective = Number(chosen.get("objective") || 0.99), window_ = Number(chosen.get("window") || 30);
  const value = scope.slice(1).join(":"), rows = range(all.rows).filter((row) => all.scope[row] === scope[0] && (all.value[row] || "") === value);
  if (!rows.length) { add(card("No moves", "No day has moves of this scope.", "none")); return; }
  const days = daysBetween(all.day[rows[0]], [all.day[rows.at(-1)], day(rehome.about.as_of)].sort().at(-1)), at = new Map(days.map((text, index) => [text, index]));
  const fill = (name) => { const made = days.map(() => 0); for (const row of rows) made[at.get(all.day[row])] = all[name][row] || 0; return made; };
  const met = fill("met"), missed = fill("missed");
  const within = (values, index, length) => sum(values.slice(Math.max(0, index - length + 1), index + 1));
  const rolled = days.map((_, index) => { const good = within(met, index, window_), bad = within(missed, index, window_); return { good, bad, total: good + bad, say: good + bad >= FEWEST }; });
  const budget = rolled.map((one) => (one.say ? 1 - one.bad / (one.total * (1 - objective)) : null));
  const burn = (length) => days.map((_, index) => { const good = within(met, index, length), bad = within(missed, index, length); return good + bad >= FEWEST ? bad / (good + bad) / (1 - objective) : null; });
  const last = rolled.at(-1), share = attained(last.good, last.bad), left = budget.at(-1), fast = burn(1), slow = burn(7);
  const spare = Math.floor(last.total * (1 - objective) - last.bad);
  add(tiles([
    { name: `met within ${window_} days`, value: share.text, more: share.more, id: "attainment" },
    { name: "objective", value: percent(objective), more: "of the moves that count", id: "objective" },
    { name: "error budget left", value: left === null ? TOO_FEW : `${left < 0 ? "−" : ""}${(Math.floor(Math.abs(left) * 1000) / 10).toFixed(1)} %`, more: left === null ? `fewer than ${FEWEST} moves count` : spare >= 0 ? `${count(spare, "more move")} may miss` : `${count(-spare, "move")} over it`, kind: left !== null && left < 0 ? "bad" : left !== null && left < 0.25 ? "warn" : "", id: "budget-left" },
    { name: "burn rate, 1 day", value: fast.at(-1) === null ? TOO_FEW : `${fast.at(-1).toFixed(1)} ×`, more: "1 × spends the budget in its window", kind: fast.at(-1) >= 6 ? "bad" : "", id: "burn-1" },
    { name: "burn rate, 7 days", value: slow.at(-1) === null ? TOO_FEW : `${slow.at(-1).toFixed(1)} ×`, more: "both above 1 × need a look", kind: slow.at(-1) > 1 ? "warn" : "", id: "burn-7" },
  ]));
  const bounds = rolled.map((one) => wilson(one.good, one.total));
  const least = Math.max(0, Math.min(objective, ...bounds.filter((_, index) => rolled[index].say).map(([low]) => low)) - 0.02);
  const first = card(`Share of deadlines met, over ${window_} days`, `Each day counts the moves that started in the ${window_} days until it. The band is the 95 % Wilson interval; grey days have fewer than ${FEWEST} moves that count.`, "share");
  drawn(lined(first, "Share of deadlines met by day", days, { values: rolled.map((one) => (one.say ? one.good / one.total : null)), low: bounds.map(([low]) => low), high: bounds.map(([, high]) => high), least: Math.floor(least * 50) / 50, most: 1, marks: [{ value: objective, name: `objective ${percent(objective)}` }], format: percent, title: (index) => `${attained(rolled[index].good, rolled[index].bad).text}\n${attained(rolled[index].good, rolled[index].bad).more}` }));
  const shown = range(days.length).reverse();
  first.appendChild(behind("share", [["day", (index) => days[index]], ["met", (index) => met[index], "n"], ["missed", (index) => missed[index], "n"], [`met, ${window_} days`, (index) => rolled[index].good, "n"], [`missed, ${window_} days`, (index) => rolled[index].bad, "n"], ["share", (index) => attained(rolled[index].good, rolled[index].bad).text, "n"], ["95 % interval", (index) => (rolled[index].say ? `${percent(bounds[index][0])} to ${percent(bounds[index][1])}` : "–"), "n"]], shown));
  const known = budget.filter((one) => one !== null), floor = Math.min(0, ...known), second = card("Error budget left", `Of the moves in ${window_} days ${percent(1 - objective)} may miss their deadline; below zero more than that did.`, "budget");
  drawn(lined(second, "Error budget left by day", days, { values: budget, least: Math.floor(Math.max(floor, -3) * 4) / 4, most: 1, marks: [{ value: 0, name: "spent" }], format: (one) => `${one < 0 ? "−" : ""}${Math.abs(Math.round(one * 100))} %`, color: "l2", title: (index) => (budget[index] === null ? TOO_FEW : `${(budget[index] * 100).toFixed(1)} % left`) }));
  second.appendChild(behind("budget", [["day", (index) => days[index]], ["budget left", (index) => (budget[index] === null ? TOO_FEW : `${(budget[index] * 100).toFixed(1)} %`), "n"], ["burn rate, 1 day", (index) => (fast[index] === null ? TOO_FEW : `${fast[index].toFixed(1)} ×`), "n"], ["burn rate, 7 days", (index) => (slow[index] === null ? TOO_FEW : `${slow[index].toFixed(1)} ×`), "n"]], shown));
  const third = card("Moves that count", "What each day's deadlines came to. Excluded: cancelled, superseded or invalid before their deadline.", "counted"), names = [["met", "f2"], ["missed", "f4"], ["not_due", "f1"], ["excluded", "f6"]];
  const series = names.map(([name, color]) => ({ name: words(name), color, values: fill(name) }));
  drawn(stacked(third, "Moves that count by day", days, series, (one) => one.toLocaleString("en"), 160));
  third.appendChild(behind("counted", [["day", (index) => days[index]], ...series.map((one) => [one.name, (index) => one.values[index], "n"])], shown));
  add(first, second, third);
}

// --- plans

/** The plans that were submitted, and those that only their moves tell of, the latest first. */
function plansKnown(moves) {
  const known = tables.plans, groups = new Map(), narrowed = ["node", "kind", "topic"].some((name) => chosen.get(name)), as_of = rehome.about.as_of;
  for (const row of movesChosen(moves)) { const name = moves.plan[row]; if (name !== null) { if (!groups.has(name)) groups.set(name, []); groups.get(name).push(row); } }
  const within = (row) => (groups.get(known.plan[row]) || []).filter((one) => moves.started[one] >= known.started[row] && moves.started[one] <= (known.finished[row] ?? as_of));
  const found = range(known.rows).filter((row) => known.started[row] >= sinceOf()).map((row) => ({
    name: known.plan[row], namespace: known.namespace[row], id: known.id[row], run: known.chain[row], outcome: known.outcome[row], phase: known.phase[row], began: known.started[row], ended: known.finished[row], deadline: known.deadline[row], met: known.met[row],
    low: known.low[row], high: known.high[row], moves: known.moves[row], done: known.done[row], missed: known.missed[row], open: known.running[row], bytes: known.bytes[row], total: known.total[row], message: known.message[row], rows: within(row),
  })).filter((one) => one.rows.length || !narrowed);
  const names = new Set(known.plan || []);
  for (const [name, rows] of groups) {
    if (names.has(name)) continue;
    const of = (outcomes) => rows.filter((row) => outcomes.includes(moves.outcome[row])).length, open = of(["open"]), ends = rows.map((row) => moves.started[row] + moves.took[row]);
    found.push({ name, namespace: null, id: null, run: null, outcome: open ? "open" : null, phase: null, began: moves.started[rows[0]], ended: open ? null : ends.reduce((most, end) => Math.max(most, end), 0), deadline: null, met: null, low: null, high: null, moves: rows.length, done: of(DONE), missed: rows.length - of(DONE) - open, open, bytes: sum(rows.map((row) => moves.bytes[row])), total: sum(rows.map((row) => moves.total[row])), message: null, rows });
  }
  return found.sort((a, b) => (b.ended ?? as_of) - (a.ended ?? as_of) || b.began - a.began);
}

function plans() {
  const moves = tables.moves, all = plansKnown(moves), of = (one, text) => one.rows.filter((row) => moves.sla[row] === text).length;
  const shown = all.find((one) => one.name === chosen.get("plan") && (!chosen.get("run") || one.run === chosen.get("run"))) || all[0];
  if (shown) add(burning(shown));
  const section = card("Plans", "The latest first. A name leads to its burn-down. Filtered by their start, and by their moves as far as these are in this site.", "plans");
  section.appendChild(listing("plans", [
    ["plan", (one) => planLink(one.name, one.run)], ["outcome", (one) => (one.outcome === null ? "–" : mark(one.outcome))], ["began (UTC)", (one) => stamp(one.began)], ["ended (UTC)", (one) => (one.ended === null ? pill("open") : stamp(one.ended))], ["took", (one) => duration((one.ended ?? rehome.about.as_of) - one.began), "n"],
    ["moves", (one) => one.moves, "n"], ["done", (one) => one.done, "n"], ["open", (one) => one.open, "n"], ["missed", (one) => one.missed, "n"], ["copied", (one) => `${size(one.bytes)} of ${size(one.total)}`, "n"],
    ["deadline (UTC)", (one) => stamp(one.deadline)], ["met", (one) => (one.deadline === null ? "–" : mark(one.met))], ["moves in time", (one) => attained(of(one, "yes"), of(one, "no")).text, "n"], ...runColumn((one) => [one.namespace, one.id, one.run]), ["why", (one) => one.message, "why"],
  ], all, "No plan was submitted."));
  add(section);
}

/** How the bytes left of a plan became fewer: gold's plan_progress. */
function burning(plan) {
  const progress = tables.progress, section = card(`Burn-down of ${plan.name}`, "Bytes left of the whole plan, by the minutes in which moves of it ended, whatever the filters. While it is open the fan shows when nothing is left, by the 10 % and 90 % quantiles of its rate over a quarter of its time so far; before its first move has ended, by what its check expected.", "burn-down");
  const rows = range(progress.rows).filter((row) => progress.id[row] === plan.id && progress.chain[row] === plan.run), until = plan.ended ?? rehome.about.as_of;
  const total = Math.max(0, ...(rows.length ? rows.map((row) => progress.total[row]) : [plan.total || 0]));
  const ends = (row) => Math.min(progress.minute[row] + 60, until), points = [[plan.began, total], ...rows.map((row) => [ends(row), Math.max(0, total - progress.bytes[row])])];
  const left = points.at(-1)[1];
  if (until > points.at(-1)[0]) points.push([until, left]);
  const fan = plan.ended === null && left > 0 ? fanOf(plan, points, rows.length > 0) : null;
  if (total) drawn(burnDown(section, `Bytes left of ${plan.name} over time`, points, fan, total, plan.deadline));
  else section.appendChild(make("p", "empty", "No move of it has ended, and it is not known how much it copies."));
  const after = (seconds) => (seconds === null ? "no end in sight" : duration(seconds));
  const end = plan.ended !== null ? `ended ${stamp(plan.ended)} UTC` : fan ? `ends in ${after(fan.low)} to ${after(fan.high)}` : "no end in sight";
  const due = plan.deadline === null ? "" : `; deadline ${stamp(plan.deadline)} UTC: ${words(plan.met)}`;
  section.appendChild(make("p", "more", `${size(total)} in ${count(plan.moves ?? plan.rows.length, "move")}; ${size(left)} left; ${end}${due}.`)).dataset.testid = "burn-end";
  section.appendChild(behind("burn-down", [
    ["until (UTC)", (row) => stamp(ends(row))], ["done", (row) => progress.done[row], "n"], ["missed", (row) => progress.missed[row], "n"], ["left", (row) => size(Math.max(0, total - progress.bytes[row])), "n"], ["mean rate", (row) => rate(progress.rate[row]), "n"], ["end at this rate (UTC)", (row) => stamp(progress.eta[row])],
  ], rows));
  return section;
}

/** When nothing is left of an open plan: seconds from now, of the slow end null if there is none. */
function fanOf(plan, points, begun) {
  const [now, left] = points.at(-1), span = Math.max(now - plan.began, 1), wide = Math.max(span / 4, Math.min(span, 60));
  if (!begun) return plan.high === null ? null : { from: now, left, low: Math.max(0, plan.began + (plan.low ?? 0) - now), high: plan.began + plan.high > now ? plan.began + plan.high - now : null };
  const at = (time) => {
    const next = points.findIndex(([one]) => one >= time);
    if (next <= 0) return points[next < 0 ? points.length - 1 : 0][1];
    const [[t0, a], [t1, b]] = [points[next - 1], points[next]];
    return t1 > t0 ? a + ((b - a) * (time - t0)) / (t1 - t0) : b;
  };
  const rates = inOrder(range(24).map((index) => { const end = plan.began + wide + ((span - wide) * index) / 23; return (at(end - wide) - at(end)) / wide; }));
  const slow = quantile(rates, 0.1), fast = quantile(rates, 0.9);
  return fast > 0 ? { from: now, left, low: left / fast, high: slow > 0 ? left / slow : null } : null;
}

// --- copies by disk

function disks() {
  const moves = tables.moves, by = chosen.get("by") || "target", span = Number(chosen.get("span") || 86400);
  const ends = (row) => moves.started[row] + moves.took[row], begins = (row) => moves.started[row] + (moves.queued[row] || 0);
  let rows = movesChosen(moves).filter((row) => moves.directory[row] || moves.source[row]);
  byId("reset").hidden = !chosen.has("from") && !chosen.has("to");
  const newest = rows.reduce((most, row) => Math.max(most, ends(row)), -Infinity);
  const to = Number(chosen.get("to")) || newest, from = Number(chosen.get("from")) || (span ? to - span : rows.reduce((least, row) => Math.min(least, moves.started[row]), Infinity));
  rows = rows.filter((row) => ends(row) >= from && moves.started[row] <= to);
  const cut = Math.max(0, rows.length - 3000);
  rows = rows.slice(cut);
  const nameOf = (row) => (by === "source" ? `node ${moves.kind[row] === "disk" ? moves.node[row] ?? "?" : moves.from_node[row] ?? "?"}: ${moves.source[row] || "?"}` : `node ${moves.node[row] ?? "?"}: ${moves.directory[row] || "?"}`);
  const groups = new Map();
  for (const row of rows) { const name = nameOf(row); if (!groups.has(name)) groups.set(name, []); groups.get(name).push(row); }
  const lanes = [...groups].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true })).map(([name, found]) => ({ name, ...packed(moves, found, begins, ends), found }));
  const section = card(`Copies by ${by === "source" ? "the disk they leave" : "the disk that gets them"}`, "One bar per copy, from its first byte until the replica is in place; the thin line before it is its wait. The inner shade is the share of its time in which a limit or a slow disk held it back. Below each disk: the rate of its copies together, and the limit as a line. Drag over the chart to see a part of it.", "gantt");
  legend(section, [["f1", "copying"], ["held f3", "held back"], ["f2", "rate of the disk's copies"], ["dash l4", "limit"], ["f4", "failed"]]);
  if (!rows.length) section.appendChild(make("p", "empty", "No copies in this time."));
  else drawn(gantt(section, moves, lanes, from, to, begins, ends));
  if (cut) section.appendChild(make("p", "more", `${cut.toLocaleString("en")} older copies of this time are not drawn: choose a shorter time.`));
  const held = (row) => { const whole = moves.copying[row] + moves.throttled[row] + moves.stalled[row]; return whole ? (moves.throttled[row] + moves.stalled[row]) / whole : 0; };
  section.appendChild(behind("gantt", [
    ["replica", (row) => moveLink(moves, row)], ["disk", nameOf, "path"], ["first byte (UTC)", (row) => stamp(begins(row))], ["in place (UTC)", (row) => (moves.outcome[row] === "open" ? "open" : stamp(ends(row)))],
    ["waited", (row) => duration(moves.queued[row]), "n"], ["held back", (row) => percent(held(row)), "n"], ["mean rate", (row) => rate(moves.rate[row]), "n"], ["limit", (row) => rate(moves.limit[row]), "n"], ["size", (row) => size(moves.bytes[row]), "n"], ...moveRun(moves),
  ], rows.slice().reverse()));
  add(section);
}

/** Put copies that overlap into lines below each other. */
function packed(moves, found, begins, ends) {
  const free = [], line = new Map();
  for (const row of found.slice().sort((a, b) => moves.started[a] - moves.started[b])) {
    let at = free.findIndex((end) => end <= moves.started[row]);
    if (at < 0) at = free.length < 12 ? free.length : 11;
    free[at] = Math.max(free[at] || 0, ends(row));
    line.set(row, at);
  }
  return { lines: Math.max(1, free.length), line };
}

function gantt(section, moves, lanes, from, to, begins, ends) {
  const BAR = 11, GAP = 3, CURVE = 22;
  return chart(section, "Copies by disk over time", 100, (picture, width) => {
    const narrow = width < 560, left = narrow ? 6 : Math.min(230, width * 0.24), bottom = lanes.reduce((total, lane) => total + lane.lines * (BAR + GAP) + CURVE + 12 + (narrow ? 12 : 0) + 2, 20);
    const x = timeAxis(picture, from, to, left, width, bottom), inside = (at) => Math.min(Math.max(x(at), left), width);
    const fastest = Math.max(1, ...lanes.flatMap((lane) => together(moves, lane.found, begins, ends).map(([, speed, limit]) => Math.max(speed, limit || 0))));
    let top = 20;
    for (const lane of lanes) {
      if (narrow) top += 12;
      const name = lane.name.length > 34 ? `${lane.name.slice(0, 10)}…${lane.name.slice(-22)}` : lane.name;
      const label = picture.appendChild(svg("text", narrow ? { x: left, y: top - 2 } : { x: left - 10, y: top + 10, "text-anchor": "end" }, "strong", name));
      label.appendChild(svg("title", {}, "", lane.name));
      for (const row of lane.found) {
        const y = top + lane.line.get(row) * (BAR + GAP), begin = inside(begins(row)), end = Math.max(inside(ends(row)), begin + 1.2);
        const group = picture.appendChild(svg("g"));
        const waited = inside(moves.started[row]);
        if (begin - waited > 1) group.appendChild(svg("line", { x1: waited, x2: begin, y1: y + BAR / 2, y2: y + BAR / 2 }, "line l6"));
        group.appendChild(svg("rect", { x: begin, y, width: end - begin, height: BAR, rx: 1.5 }, FAILED.includes(moves.outcome[row]) ? "f4" : GONE.includes(moves.outcome[row]) ? "f6" : "f1"));
        const busy = moves.copying[row] + moves.throttled[row] + moves.stalled[row], held = busy ? (moves.throttled[row] + moves.stalled[row]) / busy : 0;
        if (held > 0.005) group.appendChild(svg("rect", { x: begin, y: y + BAR * 0.45, width: (end - begin) * held, height: BAR * 0.55 }, "held"));
        hint(group, () => `${replica(moves, row)}, ${words(moves.outcome[row])}\n${places(moves, row).join(" → ")}\n${stamp(begins(row))} UTC, ${duration(moves.took[row])}\n${rate(moves.rate[row])} of ${moves.limit[row] ? rate(moves.limit[row]) : "no limit"}, held back ${percent(held)}`);
      }
      top += lane.lines * (BAR + GAP) + 2;
      const points = together(moves, lane.found, begins, ends), y = (value) => top + CURVE - (CURVE * value) / fastest;
      let area = "", line = "";
      points.forEach(([at, speed, limit], index) => {
        const next = index + 1 < points.length ? points[index + 1][0] : at, a = inside(at), b = inside(next);
        if (b <= a) return;
        if (speed > 0) area += `M${a.toFixed(1)},${(top + CURVE).toFixed(1)}V${y(speed).toFixed(1)}H${b.toFixed(1)}V${(top + CURVE).toFixed(1)}Z`;
        if (limit > 0) line += `M${a.toFixed(1)},${y(limit).toFixed(1)}H${b.toFixed(1)}`;
      });
      picture.appendChild(svg("path", { d: area || "M0,0", "fill-opacity": 0.55 }, "f2"));
      picture.appendChild(svg("path", { d: line || "M0,0", fill: "none" }, "dash l4"));
      picture.appendChild(svg("line", { x1: left, x2: width, y1: top + CURVE, y2: top + CURVE }, "axis"));
      if (!narrow) picture.appendChild(svg("text", { x: left - 10, y: top + CURVE, "text-anchor": "end" }, "", `up to ${rate(Math.max(0, ...points.map(([, speed]) => speed)))}`));
      top += CURVE + 12;
    }
    zoom(picture, x, from, to, left, width, bottom);
    return bottom + 20;
  });
}

/** The rate and the limit of several copies together, as steps: time, rate, limit (null if one of them has none). */
function together(moves, found, begins, ends) {
  const events = [];
  for (const row of found) {
    const begin = begins(row), end = Math.max(ends(row), begin + 0.001);
    events.push([begin, moves.rate[row] || 0, moves.limit[row] || 0, moves.limit[row] ? 0 : 1], [end, -(moves.rate[row] || 0), -(moves.limit[row] || 0), moves.limit[row] ? 0 : -1]);
  }
  events.sort((a, b) => a[0] - b[0]);
  let speed = 0, limit = 0, without = 0;
  return events.map(([at, more, limited, free]) => { speed += more; limit += limited; without += free; return [at, Math.max(0, speed), without ? null : Math.max(0, limit)]; });
}

function zoom(picture, x, from, to, left, width, bottom) {
  const cover = svg("rect", { x: left, y: 0, width: 0, height: bottom, "fill-opacity": 0.12 }, "f1");
  picture.appendChild(cover);
  let start = null;
  const at = (event) => { const box = picture.getBoundingClientRect(); return Math.min(Math.max(((event.clientX - box.left) * width) / box.width, left), width); };
  const time = (place) => from + ((to - from) * (place - left)) / (width - left);
  picture.onmousedown = (event) => { start = at(event); event.preventDefault(); };
  picture.onmousemove = (event) => { if (start === null) return; cover.setAttribute("x", Math.min(start, at(event))); cover.setAttribute("width", Math.abs(at(event) - start)); };
  picture.onmouseup = (event) => {
    const end = at(event), began = start;
    start = null;
    cover.setAttribute("width", 0);
    if (began === null || Math.abs(end - began) < 6) return;
    chosen.set("from", time(Math.min(began, end)).toFixed(1));
    choose("to", time(Math.max(began, end)).toFixed(1));
  };
}

// --- nodes

function nodes() {
  const moves = tables.moves, rows = movesChosen(moves), rates = tables.rates, since = sinceOf(), node = chosen.get("node");
  add(byNode(moves, rows));
  const cells = new Map(), seconds = new Map(), days = new Set(), names = new Set();
  for (const row of range(rates.rows)) {
    if (rates.hour[row] < since || (node && String(rates.node[row]) !== node) || (chosen.get("kind") && rates.kind[row] !== chosen.get("kind"))) continue;
    const name = `node ${rates.node[row] ?? "?"}: ${rates.target[row] || "?"}`, text = dayOf(rates.hour[row]), key = `${name}\n${text}`;
    names.add(name); days.add(text);
    cells.set(key, (cells.get(key) || 0) + (rates.bytes[row] || 0));
    seconds.set(key, (seconds.get(key) || 0) + (rates.seconds[row] || 0));
  }
  const shown = [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true })), sorted = [...days].sort(), all = sorted.length ? daysBetween(sorted[0], sorted.at(-1)).slice(-62) : [];
  for (const [title, id, note, value, format] of [
    ["Bytes that disks got, by day", "heat-bytes", "Darker is more. From the hours in which replicas were copied.", (name, text) => cells.get(`${name}\n${text}`), size],
    ["Mean rate of one copy, by disk and day", "heat-rates", "Bytes by the seconds of copying, the limited and stalled ones included.", (name, text) => { const key = `${name}\n${text}`; return seconds.get(key) ? cells.get(key) / seconds.get(key) : 0; }, rate],
  ]) {
    const section = card(title, note, id);
    if (!shown.length) section.appendChild(make("p", "empty", "No copies."));
    else {
      drawn(heat(section, title, shown, all, value, format));
      section.appendChild(behind(id, [["disk", ([name]) => name, "path"], ["day", ([, text]) => text], ["value", ([name, text]) => format(value(name, text)), "n"]], shown.flatMap((name) => all.filter((text) => value(name, text)).map((text) => [name, text]))));
    }
    add(section);
  }
}

// --- stalls and failures

function stalls() {
  const all = tables.stalls, since = day(Math.max(0, sinceOf())), node = chosen.get("node");
  const rows = range(all.rows).filter((row) => all.reason[row] !== "copying" && all.day[row] >= since && (!node || String(all.node[row]) === node));
  const reasons = [...new Set(rows.map((row) => all.reason[row]))].sort(), colors = ["f3", "f6", "f4", "f5", "f1", "f2"];
  const first = card("Time in which moves were held, by reason", "By the day on which the moves started. Each second counts once, by the reason that nothing else explains. Filtered by node and time.", "held");
  if (!rows.length) first.appendChild(make("p", "empty", "No move was held."));
  else {
    const texts = rows.map((row) => all.day[row]).sort(), days = daysBetween(texts[0], texts.at(-1)), at = new Map(days.map((text, index) => [text, index]));
    const series = reasons.map((reason, index) => ({ name: words(reason), color: colors[index % colors.length], values: days.map(() => 0) }));
    for (const row of rows) series[reasons.indexOf(all.reason[row])].values[at.get(all.day[row])] += all.seconds[row] / 3600;
    drawn(stacked(first, "Hours held by reason and day", days, series, (value) => `${Number(value.toPrecision(3))} h`));
    first.appendChild(behind("held", [["reason", ([reason]) => words(reason)], ["node", ([, of]) => of], ["moves", ([, , found]) => sum(found.map((row) => all.moves[row])), "n"], ["time", ([, , found]) => duration(sum(found.map((row) => all.seconds[row]))), "n"], ["longest", ([, , found]) => duration(Math.max(...found.map((row) => all.longest[row]))), "n"]],
      [...rows.reduce((groups, row) => { const key = `${all.reason[row]}\n${all.node[row] < 0 ? "?" : all.node[row]}`; groups.set(key, [...(groups.get(key) || []), row]); return groups; }, new Map())].map(([key, found]) => [...key.split("\n"), found])));
  }
  const retries = tables.retries, tried = range(retries.rows).filter((row) => retries.day[row] >= since && (!node || String(retries.node[row]) === node));
  const groups = new Map();
  for (const row of tried) {
    const key = `${retries.type[row]}\n${retries.activity[row]}`, group = groups.get(key) || { key, activities: 0, attempts: 0, retried: 0, failed: 0, timed_out: 0, last: null };
    for (const name of ["activities", "attempts", "retried", "failed", "timed_out"]) group[name] += retries[name][row] || 0;
    group.last = retries.last_failure[row] || group.last;
    groups.set(key, group);
  }
  const second = card("Activities and their retries", "Attempts as far as results report them: Temporal's history has no event for a retry.", "retries");
  second.appendChild(listing("retries", [["workflow", (one) => one.key.split("\n")[0]], ["activity", (one) => one.key.split("\n")[1]], ...["activities", "attempts", "retried", "failed", "timed_out"].map((name) => [words(name), (one) => one[name].toLocaleString("en"), "n"]), ["last failure", (one) => one.last, "why"]], [...groups.values()].sort((a, b) => b.retried - a.retried)));
  const failures = tables.failures, third = card("Failed log directories", "The latest first.", "failures");
  third.appendChild(listing("failures", [["node", (row) => failures.node[row]], ["directory", (row) => failures.directory[row], "path"], ["noticed (UTC)", (row) => stamp(failures.noticed[row])], ["in the metadata (UTC)", (row) => stamp(failures.recorded[row])], ["replicas offline", (row) => failures.replicas[row], "n"], ["moves ended", (row) => failures.moves[row], "n"], ...runColumn((row) => [failures.namespace[row], failures.id[row], failures.chain[row]]), ["why", (row) => failures.reason[row], "why"]], range(failures.rows).reverse(), "No log directory failed."));
  add(first, second, third, needsAttention(tables.moves, movesChosen(tables.moves)));
}

// --- data quality

function data() {
  const ingests = tables.ingests, rows = range(ingests.rows), quarantine = tables.quarantine, all = (name) => sum(ingests[name] || []);
  const total = (name) => sum(rows.filter((row) => ingests.kind[row] !== "pending").map((row) => ingests[name][row]));
  const difference = all("expected") - all("read") - all("quarantined");
  const forbidden = range(tables.transitions.rows).filter((row) => !tables.transitions.allowed[row]);
  const newest = rows.length ? Math.max(...ingests.taken_at) : null, age = newest === null ? null : rehome.about.as_of - newest;
  if (difference) byId("page").appendChild(make("p", "alarm", `${Math.abs(difference).toLocaleString("en")} events of the exports are neither read nor in quarantine.`));
  if (forbidden.length) byId("page").appendChild(make("p", "alarm", `${count(forbidden.length, "transition")} of replicas that the workflow's own table forbids.`));
  add(tiles([
    { name: "events expected", value: total("expected").toLocaleString("en"), more: "that the exports' manifests name", id: "expected" },
    { name: "read", value: total("read").toLocaleString("en"), more: difference ? "not equal: see above" : "expected = read + quarantined", kind: difference ? "bad" : "", id: "read" },
    { name: "in quarantine", value: total("quarantined").toLocaleString("en"), more: count(quarantine.rows, "part"), kind: quarantine.rows ? "warn" : "", id: "quarantined" },
    { name: "newest export", value: age === null ? "–" : age < 1 ? "now" : `${duration(age)} before`, more: newest === null ? "nothing was read" : `${stamp(newest)} UTC`, id: "newest" },
    { name: "forbidden transitions", value: String(forbidden.length), more: `of ${sum(tables.transitions.moves || []).toLocaleString("en")} steps`, kind: forbidden.length ? "bad" : "", id: "forbidden" },
  ]));
  const first = card("Exports read", "By the day of the export. Of a file of pending activities the runs are counted, not events.", "ingests");
  if (rows.length) {
    const days = daysBetween(ingests.day[rows[0]], [...ingests.day].sort().at(-1)), at = new Map(days.map((text, index) => [text, index]));
    const series = [["read", "f1"], ["quarantined", "f4"]].map(([name, color]) => { const values = days.map(() => 0); for (const row of rows) values[at.get(ingests.day[row])] += ingests[name][row]; return { name, color, values }; });
    drawn(stacked(first, "Events read and in quarantine by day", days, series, (value) => value.toLocaleString("en"), 150));
  }
  first.appendChild(behind("ingests", [["day", (row) => ingests.day[row]], ["kind", (row) => ingests.kind[row]], ["files", (row) => ingests.files[row], "n"], ["size", (row) => size(ingests.bytes[row]), "n"], ...["expected", "read", "quarantined"].map((name) => [name, (row) => ingests[name][row].toLocaleString("en"), "n"])], rows.slice().reverse()));
  const second = card("Quarantine", "What could not be read, the latest first. It stops nothing else.", "quarantine");
  second.appendChild(listing("quarantine", [["file", (row) => quarantine.file[row], "path"], ["offset (byte)", (row) => quarantine.offset[row], "n"], ["reason", (row) => pill(quarantine.reason[row], "warn")], ["events lost", (row) => quarantine.events[row], "n"], ["what", (row) => quarantine.message[row], "why"]], range(quarantine.rows).reverse(), "Everything could be read."));
  const third = card("Transitions", "Steps of replicas by the workflow's own transition table; a forbidden one is an alarm.", "transitions"), moved = tables.transitions, groups = new Map();
  for (const row of range(moved.rows)) {
    const key = [moved.phase[row], moved.event[row], moved.next_phase[row] || "end"].join("\n"), group = groups.get(key) || { key: key.split("\n"), moves: 0, allowed: moved.allowed[row], example: moved.example[row] };
    group.moves += moved.moves[row];
    groups.set(key, group);
  }
  third.appendChild(listing("transitions", [["phase", (one) => words(one.key[0])], ["outcome of its step", (one) => words(one.key[1])], ["next phase", (one) => words(one.key[2])], ["moves", (one) => one.moves.toLocaleString("en"), "n"], ["", (one) => (one.allowed ? pill("allowed", "good") : pill("forbidden", "bad"))], ["for example", (one) => one.example, "path"]], [...groups.values()].sort((a, b) => a.allowed - b.allowed || b.moves - a.moves)));
  add(first, second, third);
}

// --- one move

function planLink(name, run = null) {
  if (name === null) return "–";
  const link = make("a", "", name);
  link.href = `plans.html?plan=${encodeURIComponent(name)}${run === null ? "" : `&run=${encodeURIComponent(run)}`}`;
  return link;
}

function move() {
  const moves = tables.moves, row = Number(chosen.get("row") ?? moves.rows - 1);
  const exact = Number.isInteger(row) && row >= 0 && row < moves.rows && (!chosen.get("started") || moves.started[row] === Number(chosen.get("started")));
  if (!exact) { const none = card("Not here", null, "none"); none.appendChild(make("p", "empty", "This move is not in this site: it is of another report, or older than the newest moves that the site has.")); add(none); return; }
  const [from, to] = places(moves, row), run = (name) => { const link = runLink(moves.namespace[row], workflowId(moves, row, name)); link.classList.add("mono"); return link; };
  document.title = `rehome: ${replica(moves, row)}`;
  document.querySelector("h1").textContent = replica(moves, row);
  const facts = card(`${replica(moves, row)}: ${from} → ${to}`, moves.message[row] || moves.stall[row], "facts"), list = facts.appendChild(make("dl", "facts"));
  for (const [name, value] of [
    ["outcome", mark(moves.outcome[row])], ["met SLA", mark(moves.sla[row])], ["kind", moves.kind[row]], ["started (UTC)", stamp(moves.started[row])], ["in place (UTC)", moves.outcome[row] === "open" ? "open" : stamp(moves.started[row] + moves.took[row])],
    ["took", duration(moves.took[row])], ["deadline", duration(moves.deadline[row])], ["size", size(moves.bytes[row])], ["found valid on disk", size(moves.resumed[row])], ["mean rate", rate(moves.rate[row])], ["limit", rate(moves.limit[row])],
    ["attempts", String(moves.attempts[row] ?? "–")], ["swap lock", duration(moves.locked[row])], ["phase", words(moves.phase[row])], ["reason", words(moves.reason[row])], ["plan", planLink(moves.plan[row])], ["workflow", run("run")], ...(moves.by[row] === null ? [] : [["carried out by", run("by")]]),
  ]) {
    const pair = list.appendChild(make("div"));
    pair.appendChild(make("dt", "", name));
    const cell = pair.appendChild(make("dd"));
    if (value instanceof Node) cell.appendChild(value);
    else cell.textContent = value;
  }
  const spent = card("Where its time went", "Until the replica was in place; what is left of it is creating, swapping and the waits between steps.", "spent");
  const parts = Object.fromEntries(SPENT.map(([key]) => [key, moves[key][row] || 0]));
  parts.other = Math.max(0, moves.took[row] - sum(Object.values(parts)));
  drawn(shares(spent, "Where its time went", [{ name: replica(moves, row), parts }], [...SPENT, ["other", "other steps", "f5"]], duration));
  spent.appendChild(behind("spent", [["part", ([, name]) => name], ["time", ([key]) => duration(parts[key]), "n"]], [...SPENT, ["other", "other steps"]]));
  const same = card("Other moves of this replica", null, "same"), others = range(moves.rows).filter((one) => one !== row && moves.topic[one] === moves.topic[row] && moves.partition[one] === moves.partition[row]).reverse();
  same.appendChild(listing("same", [["replica", (one) => moveLink(moves, one)], ["from", (one) => places(moves, one)[0], "path"], ["to", (one) => places(moves, one)[1], "path"], ["outcome", (one) => mark(moves.outcome[one])], ["started (UTC)", (one) => stamp(moves.started[one])], ["took", (one) => duration(moves.took[one]), "n"]], others, "No other move of it."));
  add(facts, spent, same);
}

// --- start

const PAGES = {
  index: { draw: fleet, filters: () => moveFilters(tables.moves) },
  sla: { draw: sla, filters: () => {
    const all = tables.days, scopes = [...new Set(range(all.rows).map((row) => `${all.scope[row]}:${all.value[row] || ""}`))].filter((text) => text !== "all:").sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const slos = [...new Set(range(tables.slos.rows).map((row) => tables.slos.slo[row]))];
    select("scope", "moves", [["all:", "all"], ...scopes.map((text) => [text, text.replace(":", " ")])]);
    select("objective", "objective", [["0.99", "99 %"], ["0.9", "90 %"], ["0.95", "95 %"], ["0.995", "99.5 %"], ["0.999", "99.9 %"]]);
    select("window", "window", [["30", "30 days"], ["7", "7 days"], ["90", "90 days"]]);
    if (slos.length) select("slo", "budget of", slos.map((name) => [name, name]));
  } },
  plans: { draw: plans, filters: () => moveFilters(tables.moves) },
  disks: { draw: disks, filters: () => {
    moveFilters(tables.moves);
    select("span", "show", [["86400", "24 hours"], ["3600", "1 hour"], ["21600", "6 hours"], ["604800", "7 days"], ["0", "all"]]);
    select("by", "by", [["target", "target disk"], ["source", "source disk"]]);
    const reset = byId("filters").appendChild(make("button", "", "Leave the part"));
    reset.type = "button";
    reset.id = "reset";
    reset.addEventListener("click", () => { chosen.delete("from"); choose("to", null); });
  } },
  nodes: { draw: nodes, filters: () => moveFilters(tables.moves) },
  stalls: { draw: stalls, filters: () => moveFilters(tables.moves) },
  data: { draw: data, filters: () => {} },
  move: { draw: move, filters: () => {} },
};

function draw() {
  charts.length = 0;
  tip.hidden = true;
  byId("page").replaceChildren();
  PAGES[document.body.dataset.page].draw();
  for (const place of charts) place.redraw();
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

async function start() {
  rehome.about = await inflate(rehome.packed.about);
  byId("as-of").textContent = `${stamp(rehome.about.as_of)} UTC`;
  byId("as-of").dateTime = iso(rehome.about.as_of);
  await Promise.all(Object.keys(rehome.packed).filter((name) => name !== "about").map(async (name) => { tables[name] = await tableNamed(name); }));
  PAGES[document.body.dataset.page].filters();
  links();
  draw();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; for (const place of charts) place.redraw(); } });
}
addEventListener("DOMContentLoaded", start);
