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

  function make({name, title, form, lines, rows, low}, former) {
    const asked = Object.entries(lines);
    const tasks = rows.map((row) => row.task);
    const edges = low.length ? ["lowest", "highest"] : []; // of a band around the mean of many tasks
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const label = document.createElement("span");
    label.textContent = title + asked.map(([word, value]) => `, ${word} ${shown(form, value)}`).join("");
    const now = document.createElement("span");
    now.className = "now";
    caption.append(label, now);
    const nan = document.createElement("p");
    nan.className = "fine bad";
    const box = document.createElement("div");
    figure.append(caption, nan, box);
    if (former) former.figure.replaceWith(figure); // its tasks have changed
    else place.append(figure);
    const axis = {stroke: colour("--fine"), grid: {stroke: colour("--rule"), width: 1}, ticks: {stroke: colour("--rule"), width: 1}, font: "11px system-ui"};
    const plot = new uPlot({
      width: Math.max(200, box.clientWidth), height: 150, cursor, legend: {show: false},
      scales: {x: {time: true, range: timeRange}, y: {range: (_, low, high) => range(form, low, high)}},
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      axes: [{...axis, size: 26, values: (_, values, _axis, _space, step) => values.map((value) => clock(value, step))}, {...axis, size: 62, ...(form === "bytes" ? {incrs: POWERS} : {}), values: (_, values) => values.map((value) => shown(form, value))}],
      series: [{}, ...edges.map(() => ({stroke: colour("--running-soft"), width: 1, points: {show: false}})), ...tasks.map((_, number) => ({stroke: colour(strokes[number]), width: 1.5, points: {show: ({data}) => data[0].length === 1}})),
        ...asked.map(() => ({stroke: colour("--lost"), width: 1, dash: [4, 4], points: {show: false}}))],
      bands: edges.length ? [{series: [2, 1], fill: colour("--running-soft")}] : [],
      hooks: {
        setCursor: [(plot) => { const at = plot.cursor.idx; say(charts.get(name), at); }],
        drawAxes: [(plot) => drawNans(plot, charts.get(name)?.rows || [])],
      },
    }, [[], ...edges.map(() => []), ...tasks.map(() => []), ...asked.map(() => [])], box);
    new ResizeObserver(() => plot.setSize({width: Math.max(200, box.clientWidth), height: 150})).observe(box);
    figure.setAttribute("aria-label", title);
    const chart = {plot, form, asked, tasks, edges, figure, data: [[]], now, nan, rows: []};
    charts.set(name, chart);
    return chart;
  }

  // Where a value was nan the curve has a gap, which alone would look like a pause: it gets a background.
  function drawNans(plot, rows) {
    const {ctx, bbox: {left, top, width, height}} = plot;
    ctx.save();
    ctx.fillStyle = colour("--failed");
    for (const {times, nans} of rows) {
      const marked = new Set(nans);
      for (let first = 0; first < times.length; first += 1) {
        if (!marked.has(times[first])) continue;
        let last = first;
        while (marked.has(times[last + 1])) last += 1;
        const [begin, end] = [times[first], times[last]].map((at) => Math.min(left + width, Math.max(left, plot.valToPos(at, "x", true))));
        ctx.globalAlpha = 0.25;
        ctx.fillRect(begin, top, end - begin, height);
        ctx.globalAlpha = 1;
        if (plot.scales.x.min <= times[first] && times[first] <= plot.scales.x.max) ctx.fillRect(begin, top, 2, height);
        first = last;
      }
    }
    ctx.restore();
  }

  // What a reader enlarges may be shorter than what a chart shows by itself.
  function timeRange({data: [times]}, first, last) {
    if (first === null) return [0, 1];
    const end = times[times.length - 1];
    return [first, first <= times[0] && last >= end ? Math.max(end, first + SHORTEST) : last];
  }

  function range(form, low, high) {
    if (low === null || high === null) return [0, 1];
    if (form === "part") return [0, 1];
    if (form === "percent") return [0, 100];
    if (form === "bytes" || (low >= 0 && low < high / 2)) return [0, high * 1.1 || 1];
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  // Says the values at a point, or the newest ones.
  function say(chart, at) {
    if (!chart) return;
    const times = chart.data[0];
    const point = at === null || at === undefined ? times.length - 1 : at;
    const values = chart.tasks.map((task, number) => {
      let last = point;
      const row = chart.data[chart.edges.length + number + 1];
      while (last > 0 && typeof row[last] !== "number") last -= 1;
      return chart.rows[number].nans.some((nan) => nan >= times[last] && nan <= times[point]) ? NaN : row[last];
    });
    const known = values.filter((value) => typeof value === "number" && !Number.isNaN(value));
    const texts = values.map((value, number) => `${chart.tasks.length > 1 || chart.edges.length ? `${chart.tasks[number]} ` : ""}${Number.isNaN(value) ? "nan or inf" : shown(chart.form, value)}`);
    const [low, high] = chart.edges.length ? chart.data.slice(1, 3).map((row) => row[point]) : [Math.min(...known), Math.max(...known)];
    const span = `${shown(chart.form, low)} to ${shown(chart.form, high)}`;
    const text = chart.edges.length ? `${texts[0]}, ${span}` : texts.length > 3 ? `${texts.length} tasks${known.length ? `, ${span}` : ""}` : texts.join(", ");
    if (chart.now.textContent !== text) chart.now.textContent = text;
  }

  async function look() {
    if (!document.hidden) {
      try {
        draw((await live.answer(section.dataset.metrics)).charts);
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
      const former = charts.get(row.name);
      const isSame = former && former.tasks.join() === row.rows.map((one) => one.task).join();
      if (former && !isSame) former.plot.destroy();
      const chart = isSame ? former : make(row, former);
      const joined = row.rows.length > 1 ? uPlot.join(row.rows.map((one) => [one.times, one.values])) : [row.rows[0].times, row.rows[0].values];
      const {plot} = chart, {scales: {x: {min, max}}, data: [before]} = (former || chart).plot;
      const isZoomed = before.length && (min > before[0] || max < before[before.length - 1]);
      chart.data = chart.edges.length ? [joined[0], row.low, row.high, joined[1]] : joined;
      chart.rows = row.rows;
      if (chart.nan.textContent !== row.nan) chart.nan.textContent = row.nan;
      plot.batch(() => {
        plot.setData([...chart.data, ...chart.asked.map(([, value]) => joined[0].map(() => value))], !isZoomed);
        if (isZoomed) plot.setScale("x", {min, max}); // what a reader looks at stays there while new samples come
      });
      say(chart, null);
    }
  }

  const kept = document.getElementById("kept-charts"); // of an exported job, which no server answers for
  if (kept) draw(JSON.parse(kept.textContent).charts);
  else look();
})();
