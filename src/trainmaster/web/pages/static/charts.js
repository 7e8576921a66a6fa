// Draws what was measured with uPlot, one chart a name, and adds what comes. `data-metrics` is the address of the samples.
"use strict";
(() => {
  const section = document.getElementById("charts");
  if (!section || !window.uPlot) return;
  const place = section.querySelector(".charts");
  const charts = new Map(); // name -> {plot, form, asked, tasks, figure, data, now}
  const EVERY = 3000; // ms
  const SHORTEST = 10; // s that a chart shows
  const POWERS = Array.from({length: 60}, (_, power) => 2 ** power);
  const cursor = {sync: {key: "job"}, drag: {x: true, y: false}};

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function bytes(value) {
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < names.length - 1) { value /= 1024; unit += 1; }
    return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${names[unit]}`;
  }

  // UTC, as all times of the pages: a day where one begins, else the time of day.
  function clock(at, step) {
    const text = new Date(at * 1000).toISOString();
    return at % 86400 === 0 ? text.slice(5, 10) : text.slice(11, step < 60 ? 19 : 16);
  }

  function shown(form, value) {
    if (value === null || value === undefined) return "";
    if (form === "bytes") return bytes(value);
    if (form === "part") return `${(value * 100).toFixed(0)} %`;
    if (form === "percent") return `${value.toFixed(0)} %`;
    const size = Math.abs(value);
    return size >= 1e6 || (size && size < 1e-3) ? value.toExponential(2) : size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  }

  const strokes = ["--running", "--lost", "--succeeded", "--staging", "--failed", "--waiting", "--killed", "--ink"];

  function make({name, title, form, lines, rows}) {
    const asked = Object.entries(lines);
    const tasks = rows.map((row) => row.task);
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const label = document.createElement("span");
    label.textContent = title + asked.map(([word, value]) => `, ${word} ${shown(form, value)}`).join("");
    const now = document.createElement("span");
    now.className = "now";
    caption.append(label, now);
    const box = document.createElement("div");
    figure.append(caption, box);
    place.append(figure);
    const axis = {stroke: colour("--fine"), grid: {stroke: colour("--rule"), width: 1}, ticks: {stroke: colour("--rule"), width: 1}, font: "11px system-ui"};
    const plot = new uPlot({
      width: Math.max(200, box.clientWidth), height: 150, cursor, legend: {show: false},
      scales: {x: {time: true, range: (_, first, last) => first === null ? [0, 1] : [first, Math.max(last, first + SHORTEST)]}, y: {range: (_, low, high) => range(form, low, high)}},
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      axes: [{...axis, size: 26, values: (_, values, _axis, _space, step) => values.map((value) => clock(value, step))}, {...axis, size: 62, ...(form === "bytes" ? {incrs: POWERS} : {}), values: (_, values) => values.map((value) => shown(form, value))}],
      series: [{}, ...tasks.map((_, number) => ({stroke: colour(strokes[number]), width: 1.5, spanGaps: tasks.length > 1, points: {show: false}})),
        ...asked.map(() => ({stroke: colour("--lost"), width: 1, dash: [4, 4], points: {show: false}}))],
      hooks: {setCursor: [(plot) => { const at = plot.cursor.idx; say(charts.get(name), at); }]},
    }, [[], ...tasks.map(() => []), ...asked.map(() => [])], box);
    new ResizeObserver(() => plot.setSize({width: Math.max(200, box.clientWidth), height: 150})).observe(box);
    figure.setAttribute("aria-label", title);
    const chart = {plot, form, asked, tasks, figure, data: [[]], now};
    charts.set(name, chart);
    return chart;
  }

  function range(form, low, high) {
    if (low === null || high === null) return [0, 1];
    if (form === "part") return [0, 1];
    if (form === "percent") return [0, 100];
    if (form === "bytes" || (low >= 0 && low < high / 2)) return [0, high * 1.1 || 1];
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  function say(chart, at) {
    if (!chart) return;
    const texts = chart.tasks.map((task, number) => {
      const values = chart.data[number + 1];
      let last = at === null || at === undefined ? values.length - 1 : at;
      while (last > 0 && (values[last] === null || values[last] === undefined)) last -= 1;
      return (chart.tasks.length > 1 ? `${task} ` : "") + shown(chart.form, values[last]);
    });
    const text = texts.length > 3 ? `${texts.slice(0, 2).join(", ")}, and ${texts.length - 2} more` : texts.join(", ");
    if (chart.now.textContent !== text) chart.now.textContent = text;
  }

  async function look() {
    if (!document.hidden) {
      try {
        const answer = await fetch(section.dataset.metrics, {headers: {Accept: "application/json"}});
        if (answer.ok) draw((await answer.json()).charts);
      } catch { /* the page says that it is not connected */ }
    }
    const over = /^(succeeded|failed|killed)$/.test(document.getElementById("head")?.dataset.state || "");
    setTimeout(look, over ? EVERY * 20 : EVERY);
  }

  function draw(rows) {
    if (!rows.length) return;
    if (!charts.size) {
      place.replaceChildren();
      section.querySelector(".none")?.remove();
    }
    for (const row of rows) {
      let chart = charts.get(row.name);
      if (chart && chart.tasks.join() !== row.rows.map((one) => one.task).join()) {
        chart.plot.destroy();
        chart.figure.remove();
        chart = null;
      }
      chart = chart || make(row);
      const joined = row.rows.length > 1 ? uPlot.join(row.rows.map((one) => [one.times, one.values])) : [row.rows[0].times, row.rows[0].values];
      chart.data = joined;
      chart.plot.setData([...joined, ...chart.asked.map(([, value]) => joined[0].map(() => value))]);
      say(chart, null);
    }
  }

  const kept = document.getElementById("kept-charts"); // of an exported job, which no server answers for
  if (kept) draw(JSON.parse(kept.textContent).charts);
  else look();
})();
