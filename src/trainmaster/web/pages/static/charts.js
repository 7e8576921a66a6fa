// Draws what was measured with uPlot, one chart a name, and adds what comes. `data-metrics` is the address of the samples.
"use strict";
(() => {
  const section = document.getElementById("charts");
  if (!section || !window.uPlot) return;
  const place = section.querySelector(".charts");
  const charts = new Map(); // name -> {plot, times, values, highest, now}
  const EVERY = 3000; // ms
  const titles = {cpu: "Cores", memory: "Memory", progress: "Progress", step: "Step", steps: "Steps a second", records: "Records done", "records.rate": "Records a second"};
  const cursor = {sync: {key: "job"}, drag: {x: true, y: false}};

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function bytes(value) {
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < names.length - 1) { value /= 1024; unit += 1; }
    return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${names[unit]}`;
  }

  function shown(name, value) {
    if (value === null || value === undefined) return "";
    if (/memory$/.test(name)) return bytes(value);
    if (name === "progress") return `${(value * 100).toFixed(0)} %`;
    if (/util$/.test(name)) return `${value.toFixed(0)} %`;
    const size = Math.abs(value);
    return size >= 1e6 || (size && size < 1e-3) ? value.toExponential(2) : size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  }

  function title(name) {
    if (titles[name]) return titles[name];
    if (name.startsWith("metric.")) return name.slice(7);
    const gpu = /^gpu\.(.+)\.(util|memory)$/.exec(name);
    return gpu ? `GPU ${gpu[1]} ${gpu[2] === "util" ? "use" : "memory"}` : name;
  }

  function make(name) {
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const label = document.createElement("span");
    label.textContent = title(name);
    const now = document.createElement("span");
    now.className = "now";
    caption.append(label, now);
    const box = document.createElement("div");
    figure.append(caption, box);
    place.append(figure);
    const axis = {stroke: colour("--fine"), grid: {stroke: colour("--rule"), width: 1}, ticks: {stroke: colour("--rule"), width: 1}, font: "11px system-ui"};
    const plot = new uPlot({
      width: Math.max(200, box.clientWidth), height: 150, cursor, legend: {show: false},
      scales: {x: {time: true}, y: {range: (_, low, high) => range(name, low, high)}},
      axes: [{...axis, size: 26}, {...axis, size: 62, values: (_, values) => values.map((value) => shown(name, value))}],
      series: [{}, {stroke: colour("--running"), width: 1.5, spanGaps: false, points: {show: false}}],
      hooks: {setCursor: [(plot) => { const at = plot.cursor.idx; say(charts.get(name), name, at); }]},
    }, [[], []], box);
    new ResizeObserver(() => plot.setSize({width: Math.max(200, box.clientWidth), height: 150})).observe(box);
    figure.setAttribute("aria-label", title(name));
    const chart = {plot, times: [], values: [], now};
    charts.set(name, chart);
    return chart;
  }

  function range(name, low, high) {
    if (low === null || high === null) return [0, 1];
    if (name === "progress") return [0, 1];
    if (/util$/.test(name)) return [0, 100];
    if (/^(cpu|memory|steps|records)|memory$/.test(name)) return [0, high * 1.1 || 1];
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  function say(chart, name, at) {
    if (!chart) return;
    const last = at === null || at === undefined ? chart.values.length - 1 : at;
    const text = shown(name, chart.values[last]);
    if (chart.now.textContent !== text) chart.now.textContent = text;
  }

  async function look() {
    if (!document.hidden) {
      try {
        const answer = await fetch(section.dataset.metrics, {headers: {Accept: "application/json"}});
        if (answer.ok) draw((await answer.json()).series);
      } catch { /* the page says that it is not connected */ }
    }
    const over = /^(succeeded|failed|killed)$/.test(document.getElementById("head")?.dataset.state || "");
    setTimeout(look, over ? EVERY * 20 : EVERY);
  }

  function draw(series) {
    for (const row of series) {
      const chart = charts.get(row.name) || make(row.name);
      chart.times = row.times;
      chart.values = row.values;
      chart.plot.setData([row.times, row.values]);
      say(chart, row.name, null);
    }
  }

  look();
})();
