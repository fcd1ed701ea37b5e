"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  // Theme: the system's, until somebody says otherwise.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  };
  const remember = (value) => {
    try { return value ? localStorage.setItem("safe-ext-build-theme", value) : localStorage.getItem("safe-ext-build-theme"); }
    catch { return null; } // a browser may keep nothing for files
  };
  const known = remember();
  if (known === "dark" || known === "light") root.dataset.theme = known;
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; remember(root.dataset.theme); showTheme(); });
  system.addEventListener("change", showTheme);
  showTheme();

  // The tip says what a row of a table says: one text for the eye, the ear and the table.
  const place = (x, y) => {
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = x + 14 + width > innerWidth - 8 ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight - 8 ? y - 14 - height : y + 14;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  const make = (name, text) => { const made = document.createElement(name); made.textContent = text; return made; };
  const describe = (row, title) => {
    const heads = row.closest("table").tHead.rows[0].cells;
    const list = document.createElement("dl");
    [...row.cells].forEach((cell, index) => {
      const text = cell.textContent.trim();
      if (text && cell !== title) list.append(make("dt", heads[index].textContent), make("dd", text));
    });
    tip.replaceChildren(make("strong", title.textContent), list);
    if (row.dataset.c) tip.append(spark(row.dataset.c));
    tip.hidden = false;
  };
  const spark = (digits) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const step = 100 / (digits.length - 1);
    const points = [...digits].map((digit, index) => `${(index * step).toFixed(1)} ${38 - parseInt(digit, 36)}`);
    svg.setAttribute("viewBox", "0 0 100 40");
    svg.setAttribute("preserveAspectRatio", "none");
    path.setAttribute("class", "held");
    path.setAttribute("d", `M0 40L${points.join("L")}L100 40Z`);
    svg.append(path);
    return svg;
  };
  const hide = () => { tip.hidden = true; };
  addEventListener("scroll", hide, { passive: true });

  // The timeline.
  const lanes = document.getElementById("lanes");
  if (lanes) {
    const bars = [...lanes.querySelectorAll("[data-i]")];
    let now = null;
    const leave = () => { if (now) now.classList.remove("now"); now = null; hide(); };
    const show = (bar, x, y) => {
      if (now) now.classList.remove("now");
      now = bar;
      bar.classList.add("now");
      const row = document.getElementById(`r${bar.dataset.i}`);
      describe(row, row.cells[0]);
      place(x, y);
    };
    const showAt = (bar) => {
      bar.scrollIntoView({ block: "nearest" });
      const box = bar.getBoundingClientRect();
      show(bar, Math.min(box.left + box.width / 2, innerWidth - 40), box.bottom);
    };
    lanes.addEventListener("pointermove", (event) => {
      const bar = event.target.closest("[data-i]");
      if (bar) show(bar, event.clientX, event.clientY); else leave();
    });
    lanes.addEventListener("pointerleave", leave);
    lanes.addEventListener("blur", leave);
    lanes.addEventListener("focus", () => { if (lanes.matches(":focus-visible") && bars.length) showAt(now || bars[0]); });
    lanes.addEventListener("keydown", (event) => {
      const index = bars.indexOf(now);
      const next = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: bars.length - 1 }[event.key];
      if (event.key === "Escape") return leave();
      if (next === undefined) return;
      event.preventDefault();
      showAt(bars[Math.min(bars.length - 1, Math.max(0, next))]);
    });
  }

  // Memory: what was seen nearest to the pointer.
  const memory = document.getElementById("memory");
  if (memory) {
    const plot = memory.querySelector(".plot");
    const cursor = memory.querySelector(".cursor");
    const rows = [...document.querySelectorAll("#samples tbody tr")];
    const times = rows.map((row) => Number(row.cells[0].dataset.v));
    const span = Number(memory.dataset.span);
    let now = 0;
    const show = (index, y) => {
      now = Math.min(rows.length - 1, Math.max(0, index));
      const box = plot.getBoundingClientRect();
      const share = times[now] / span;
      cursor.setAttribute("x1", `${100 * share}%`);
      cursor.setAttribute("x2", `${100 * share}%`);
      cursor.classList.add("on");
      describe(rows[now], rows[now].cells[0]);
      place(box.left + box.width * share, y);
    };
    const leave = () => { cursor.classList.remove("on"); hide(); };
    memory.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const time = (event.clientX - box.left) / box.width * span;
      const after = times.findIndex((one) => one >= time);
      const index = after < 0 ? times.length - 1 : after && time - times[after - 1] < times[after] - time ? after - 1 : after;
      show(index, event.clientY);
    });
    memory.addEventListener("pointerleave", leave);
    memory.addEventListener("blur", leave);
    memory.addEventListener("keydown", (event) => {
      const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: rows.length - 1 }[event.key];
      if (event.key === "Escape") return leave();
      if (next === undefined) return;
      event.preventDefault();
      show(next, plot.getBoundingClientRect().top + 60);
    });
  }

  // Sorting: numbers from the largest, words from A.
  const table = document.getElementById("sources");
  if (table) {
    const heads = [...table.tHead.rows[0].cells];
    const value = (row, index) => row.cells[index].dataset.v ?? row.cells[index].textContent;
    const sort = (index) => {
      const head = heads[index];
      const first = head.classList.contains("n") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const compare = head.classList.contains("n") ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].sort((a, b) => sign * compare(value(a, index), value(b, index)));
      table.tBodies[0].append(...rows);
    };
    heads.forEach((head, index) => head.firstElementChild.addEventListener("click", () => sort(index)));
    heads[1].setAttribute("aria-sort", "descending");
  }
})();
