"use strict";
// Charts as SVG, without a library. Each is drawn at the width that it has, and has a table behind it.

function svg(tag, attributes, name, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, typeof value === "number" ? Number(value.toFixed(2)) : value);
  if (name) made.setAttribute("class", name);
  if (text !== undefined) made.textContent = text;
  return made;
}
const tip = document.body.appendChild(make("div", "tip"));
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
function hint(element, text) {
  element.classList.add("hit");
  element.addEventListener("mousemove", (event) => {
    tip.hidden = false;
    tip.textContent = text();
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 14 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 8 : event.clientY + 14}px`;
  });
  element.addEventListener("mouseleave", () => { tip.hidden = true; });
  return element;
}
/** A place for a chart, which draws itself at its width. */
function chart(section, label, height, paintInto) {
  const place = section.appendChild(make("div", "chart"));
  const picture = place.appendChild(svg("svg", { role: "img", "aria-label": label }));
  place.redraw = () => {
    const width = Math.max(240, place.clientWidth - 28);
    picture.replaceChildren();
    const tall = paintInto(picture, width, height) || height;
    picture.setAttribute("viewBox", `0 0 ${width} ${tall}`);
    picture.setAttribute("height", tall);
  };
  return place;
}
function legend(section, items) {
  const list = section.appendChild(make("ul", "legend"));
  for (const [name, text] of items) {
    const item = list.appendChild(make("li"));
    item.appendChild(make("i", name));
    item.appendChild(document.createTextNode(text));
  }
}
/** Round steps up to `most`, for an axis. */
function steps(most, wanted = 4) {
  if (!(most > 0)) return [0];
  const raw = most / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= raw);
  return range(Math.ceil(most / step - 1e-9) + 1).map((index) => index * step);
}
function yAxis(picture, { left, width, top, bottom, ticks, most, format }) {
  const y = (value) => bottom - ((bottom - top) * value) / most;
  for (const tick of ticks) {
    picture.appendChild(svg("line", { x1: left, x2: width, y1: y(tick), y2: y(tick) }, tick ? "grid" : "axis"));
    picture.appendChild(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, "", format(tick)));
  }
  return y;
}
function dayLabels(picture, days, x, width, y) {
  const every = Math.max(1, Math.ceil((days.length * 62) / Math.max(width, 1)));
  days.forEach((text, index) => {
    if (index % every === 0) picture.appendChild(svg("text", { x: x(index), y, "text-anchor": "middle" }, "", text.slice(5)));
  });
}
/** All days from the first to the last one. */
function daysBetween(first, last) {
  const found = [];
  for (let at = Date.parse(first); at <= Date.parse(last); at += 86400000) found.push(new Date(at).toISOString().slice(0, 10));
  return found;
}
const LEFT = 58;

/** Bars by day, stacked. `series`: {name, color, values}. */
function stacked(section, label, days, series, format, height = 190) {
  legend(section, series.map((one) => [one.color, one.name]));
  return chart(section, label, height, (picture, width) => {
    const totals = days.map((_, index) => sum(series.map((one) => one.values[index])));
    const ticks = steps(Math.max(0, ...totals)), bottom = height - 22, most = ticks.at(-1) || 1;
    const y = yAxis(picture, { left: LEFT, width, top: 8, bottom, ticks, most, format });
    const band = (width - LEFT) / Math.max(days.length, 1), x = (index) => LEFT + band * (index + 0.5);
    days.forEach((text, index) => {
      let base = 0;
      const group = svg("g");
      for (const one of series) {
        const value = one.values[index] || 0;
        if (value) group.appendChild(svg("rect", { x: LEFT + band * index + Math.min(2, band * 0.1), width: Math.min(40, Math.max(0.8, band - Math.min(4, band * 0.2))), y: y(base + value), height: Math.max(0, y(base) - y(base + value)) }, one.color));
        base += value;
      }
      hint(group, () => `${text}\n${series.filter((one) => one.values[index]).map((one) => `${one.name}: ${format(one.values[index])}`).join("\n") || "nothing"}`);
      picture.appendChild(group);
    });
    dayLabels(picture, days, (index) => Math.min(x(index), LEFT + band * index + 22), width - LEFT, height - 6);
  });
}

/** A line by day with gaps where a value is null, an optional band, and lines to compare with: {value, name}. */
function lined(section, label, days, { values, low, high, marks = [], format, least = 0, most = 1, color = "l1", height = 190, title }) {
  const step = steps(most - least)[1], first = Math.ceil(least / step - 1e-9);
  const ticks = range(Math.floor(most / step + 1e-9) - first + 1).map((index) => (first + index) * step);
  return chart(section, label, height, (picture, width) => {
    const bottom = height - 22, top = 10, left = LEFT, scale = (value) => bottom - ((bottom - top) * (Math.min(Math.max(value, least), most) - least)) / (most - least);
    const x = (index) => left + 8 + ((width - left - 16) * index) / Math.max(days.length - 1, 1);
    for (const tick of ticks) {
      picture.appendChild(svg("line", { x1: left, x2: width, y1: scale(tick), y2: scale(tick) }, "grid"));
      picture.appendChild(svg("text", { x: left - 6, y: scale(tick) + 4, "text-anchor": "end" }, "", format(tick)));
    }
    let run = [];
    const runs = [];
    days.forEach((_, index) => { if (values[index] === null) { if (run.length) runs.push(run); run = []; } else run.push(index); });
    if (run.length) runs.push(run);
    days.forEach((_, index) => {
      if (values[index] === null) picture.appendChild(svg("rect", { x: x(index) - 1 - (width - left) / days.length / 2, width: (width - left) / days.length + 2, y: top, height: bottom - top }, "few"));
    });
    for (const part of runs) {
      if (low) picture.appendChild(svg("path", { d: `M${part.map((index) => `${x(index).toFixed(1)},${scale(high[index]).toFixed(1)}`).join("L")}L${part.slice().reverse().map((index) => `${x(index).toFixed(1)},${scale(low[index]).toFixed(1)}`).join("L")}Z` }, `band f${color.slice(1)}`));
      picture.appendChild(svg("path", { d: `M${part.map((index) => `${x(index).toFixed(1)},${scale(values[index]).toFixed(1)}`).join("L")}` }, `line ${color}`));
      if (part.length === 1) picture.appendChild(svg("circle", { cx: x(part[0]), cy: scale(values[part[0]]), r: 3 }, `f${color.slice(1)}`));
    }
    for (const one of marks) {
      picture.appendChild(svg("line", { x1: left, x2: width, y1: scale(one.value), y2: scale(one.value) }, "dash l4"));
      picture.appendChild(svg("text", { x: width - 4, y: scale(one.value) - 5, "text-anchor": "end" }, "strong", one.name));
    }
    const wide = (width - left) / Math.max(days.length, 1);
    days.forEach((text, index) => picture.appendChild(hint(svg("rect", { x: x(index) - wide / 2, width: wide, y: top, height: bottom - top, fill: "transparent" }), () => `${text}\n${title(index)}`)));
    dayLabels(picture, days, x, width - left, height - 6);
  });
}

/** Shares of one whole for each row: {name, parts: {series: value}}. */
function shares(section, label, rows, series, format) {
  legend(section, series.map(([, name, color]) => [color, name]));
  return chart(section, label, rows.length * 22 + 8, (picture, width, height) => {
    const left = Math.min(190, width * 0.36), most = Math.max(1e-9, ...rows.map((row) => sum(Object.values(row.parts))));
    rows.forEach((row, place) => {
      const y = place * 22 + 4;
      let x = left;
      picture.appendChild(svg("text", { x: left - 8, y: y + 12, "text-anchor": "end" }, "strong", row.name.length > 26 ? `${row.name.slice(0, 12)}…${row.name.slice(-13)}` : row.name));
      for (const [key, name, color] of series) {
        const wide = ((width - left - 84) * (row.parts[key] || 0)) / most;
        if (wide > 0) picture.appendChild(hint(svg("rect", { x, y, width: wide, height: 15 }, color), () => `${row.name}\n${name}: ${format(row.parts[key])}`));
        x += wide;
      }
      picture.appendChild(svg("text", { x: x + 6, y: y + 12 }, "", format(sum(Object.values(row.parts)))));
    });
    return height;
  });
}

const TIME_STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
function timeAxis(picture, from, to, left, width, bottom) {
  const x = (at) => left + ((width - left) * (at - from)) / (to - from || 1);
  const step = TIME_STEPS.find((value) => (to - from) / value <= (width - left) / 84) || 7776000;
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    picture.appendChild(svg("line", { x1: x(at), x2: x(at), y1: 16, y2: bottom }, "grid"));
    const text = step >= 86400 ? iso(at).slice(5, 10) : to - from > 86400 ? `${iso(at).slice(5, 10)} ${iso(at).slice(11, 16)}` : iso(at).slice(11, step < 60 ? 19 : 16);
    for (const y of [10, bottom + 14]) picture.appendChild(svg("text", { x: Math.min(x(at), width - 18), y, "text-anchor": "middle" }, "", text));
  }
  return x;
}

/** Cells by row and column, darker for more. */
function heat(section, label, rows, columns, value, format) {
  return chart(section, label, rows.length * 20 + 26, (picture, width, height) => {
    const left = Math.min(190, width * 0.34), wide = (width - left) / Math.max(columns.length, 1);
    const most = Math.max(1e-9, ...rows.flatMap((row) => columns.map((name) => value(row, name) || 0)));
    const group = picture.appendChild(svg("g", {}, "heat"));
    rows.forEach((row, place) => {
      picture.appendChild(svg("text", { x: left - 8, y: place * 20 + 15, "text-anchor": "end" }, "strong", row.length > 28 ? `${row.slice(0, 12)}…${row.slice(-14)}` : row));
      columns.forEach((name, index) => {
        const found = value(row, name) || 0;
        group.appendChild(hint(svg("rect", { x: left + wide * index, y: place * 20 + 2, width: wide, height: 18, "fill-opacity": found ? 0.12 + (0.88 * found) / most : 0.04 }, "f1"), () => `${row}\n${name}: ${found ? format(found) : "nothing"}`));
      });
    });
    const every = Math.max(1, Math.ceil((columns.length * 62) / (width - left)));
    columns.forEach((name, index) => { if (index % every === 0) picture.appendChild(svg("text", { x: left + wide * (index + 0.5), y: height - 4, "text-anchor": "middle" }, "", name.slice(5))); });
    return height;
  });
}

/** What is left over time: points [time, bytes], the fan of ends {from, left, low, high} (seconds from `from`), and the deadline. */
function burnDown(section, label, points, fan, total, deadline = null) {
  return chart(section, label, 220, (picture, width, height) => {
    const bottom = height - 22, ticks = steps(total), most = ticks.at(-1) || 1, first = points[0][0], last = points.at(-1)[0];
    // Neither a slow end nor a distant deadline makes what was copied too narrow to see.
    const furthest = last + 4 * Math.max(last - first, 60), end = fan ? Math.min(fan.from + (fan.high ?? fan.low * 3), furthest) : last;
    const to = Math.max(end, last, deadline !== null && deadline <= furthest ? deadline : 0) + 1;
    const x = timeAxis(picture, first, to, LEFT, width, bottom);
    const y = yAxis(picture, { left: LEFT, width, top: 20, bottom, ticks, most, format: size });
    const path = points.map(([at, left]) => `${x(at).toFixed(1)},${y(left).toFixed(1)}`).join("L");
    picture.appendChild(svg("path", { d: `M${x(first).toFixed(1)},${bottom}L${path}L${x(last).toFixed(1)},${bottom}Z` }, "band f1"));
    picture.appendChild(svg("path", { d: `M${path}` }, "line l1"));
    if (deadline !== null && deadline >= first && deadline <= to) {
      const at = x(deadline), far = at > width - 60;
      picture.appendChild(svg("line", { x1: at, x2: at, y1: 16, y2: bottom }, "dash l4 deadline"));
      picture.appendChild(svg("text", { x: far ? at - 5 : at + 5, y: 30, "text-anchor": far ? "end" : "start" }, "strong", "deadline"));
    }
    if (!fan) return;
    const stop = (seconds) => (seconds === null ? [width, y(fan.left)] : [Math.min(x(fan.from + seconds), width), x(fan.from + seconds) > width ? y(fan.left * (1 - (to - fan.from) / seconds)) : bottom]);
    const [a, b] = [stop(fan.low), stop(fan.high)], from = `${x(fan.from).toFixed(1)},${y(fan.left).toFixed(1)}`;
    picture.appendChild(svg("path", { d: `M${from}L${a.map((value) => value.toFixed(1)).join(",")}L${fan.high === null ? `${width},${bottom}L` : ""}${b.map((value) => value.toFixed(1)).join(",")}Z` }, "band f3"));
    for (const one of [a, b]) picture.appendChild(svg("path", { d: `M${from}L${one.map((value) => value.toFixed(1)).join(",")}` }, "dash l3"));
  });
}
