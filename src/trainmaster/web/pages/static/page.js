// Times that pass, the blocks that change, and keys. Pages say the same without it, only not by themselves.
"use strict";
(() => {
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

  function lasting(seconds) {
    const parts = [];
    let left = Math.max(0, Math.round(seconds));
    for (const [unit, size] of units) {
      const count = Math.floor(left / size);
      left -= count * size;
      if (count || (unit === "s" && !parts.length)) parts.push(`${count} ${unit}`);
      if (parts.length === 2) break;
    }
    return parts.join(" ");
  }

  function tick() {
    const now = Date.now() / 1000;
    for (const element of document.querySelectorAll("time[data-lasting], time[data-ago]")) {
      const seconds = now - Date.parse(element.dateTime) / 1000;
      const text = lasting(seconds) + ("ago" in element.dataset ? " ago" : "");
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // A block that has changed takes the place of its element, which keeps its focus, and what the reader has opened.
  function place(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    const element = document.getElementById(template.content.firstElementChild.id);
    return element && htmx.swap({ sourceElement: element, target: element, text: html, swap: "outerMorph" });
  }

  async function take({ version, blocks }) {
    await Promise.all(blocks.map(place));
    updates.dataset.version = version;
    tick();
  }

  const updates = document.getElementById("updates");
  const address = () => updates.dataset.address + updates.dataset.version;
  if (updates && window.htmx) {
    htmx.registerExtension("opened-stays-open", { htmx_before_morph_attr: (element, { attrName }) => element.tagName !== "DETAILS" || attrName !== "open" });
    live.keep({
      isStreamed: "live" in updates.dataset, address, ask: async () => { await take(await live.answer(address())); },
      events: { message: (event) => take(JSON.parse(event.data)) },
    });
  }

  tick();
  setInterval(tick, 1000);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const search = document.querySelector("input[type=search]");
    if (event.key === "/" && search) {
      event.preventDefault();
      search.focus();
    }
  });
})();
