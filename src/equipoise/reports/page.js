"use strict";
// Cells, optima and curves come from #data; the filters choose what of them is drawn.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const element = (id) => document.getElementById(id);
  const all = "all";
  const markers = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x"];
  const config = { displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "lasso2d", "select2d"] };
  const infinite = (epsilon) => epsilon === "inf";
  const text = (value) => (value === "inf" ? "∞" : String(value));
  // Names come from the store: plotly must not read them as its markup.
  const plain = (value) => String(value).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function fill(select, values, names, chosen) {
    const before = chosen ?? select.value;
    select.replaceChildren(...values.map((value, i) => new Option(names[i], value)));
    select.value = values.map(String).includes(String(before)) ? before : values[0];
  }

  const theCase = () => data.cases[Number(element("convention-filter").value)];
  const budget = (current, epsilon) => current.budgets.find((b) => b.epsilon === epsilon);
  const order = (current, epsilon) => current.budgets.findIndex((b) => b.epsilon === epsilon);

  function fillConventions() {
    const task = element("task-filter").value;
    const alike = data.cases.map((c, i) => [c, i]).filter(([c]) => c.task === task);
    fill(element("convention-filter"), alike.map(([, i]) => i), alike.map(([c]) => c.convention));
    fillRest();
  }

  function fillRest() {
    const current = theCase();
    const names = [...current.algorithms];
    const several = names.length > 1;
    fill(element("algorithm-filter"), several ? [all, ...names] : names, several ? ["all", ...names] : names);
    fill(element("clip-filter"), current.clips, current.clips.map(text));
    fill(element("iterations-filter"), current.iterations, current.iterations.map(text), current.reference);
    const box = element("epsilon-filter");
    const labels = current.budgets.map((b) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "checkbox", value: b.epsilon, checked: true });
      const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
      swatch.style.background = b.colour;
      label.append(input, swatch, b.label.replace("ε = ", ""));
      return label;
    });
    box.replaceChildren(box.querySelector("legend"), ...labels);
    draw();
  }

  function chosen() {
    const current = theCase();
    const algorithm = element("algorithm-filter").value;
    return {
      case: current,
      algorithms: algorithm === all ? current.algorithms : [algorithm],
      clip: element("clip-filter").value,
      iterations: Number(element("iterations-filter").value),
      budgets: [...element("epsilon-filter").querySelectorAll("input:checked")].map((input) => input.value),
      band: element("band-filter").checked,
    };
  }

  const clipOf = (epsilon, clip) => (infinite(epsilon) ? "inf" : clip);
  const curve = (current, algorithm, epsilon, clip, iterations) => current.cells.filter((c) => c.algorithm === algorithm
    && c.epsilon === epsilon && c.clip === clipOf(epsilon, clip) && c.iterations === iterations);
  const diverged = (current, algorithm, epsilon, clip, iterations) => current.diverged.filter((c) => c.algorithm === algorithm
    && c.epsilon === epsilon && c.clip === clipOf(epsilon, clip) && c.iterations === iterations);
  const optimum = (current, algorithm, epsilon, clip, iterations) => current.optima.find((o) => o.algorithm === algorithm
    && o.epsilon === epsilon && o.clip === clipOf(epsilon, clip) && o.iterations === iterations);

  const font = { family: "system-ui, sans-serif", size: 13, color: "#1c2430" };
  const line = { gridcolor: "#e6e9ee", zeroline: false, linecolor: "#98a2b0", ticks: "outside", tickcolor: "#98a2b0" };
  const nth = (i) => (i ? String(i + 1) : "");

  // A grid of panels: a column for each algorithm, a row for each y axis; axes are numbered row by row.
  function panels(s, x, ys, more = {}) {
    const n = s.algorithms.length, m = ys.length, gap = 0.035;
    const made = { font, margin: { l: 70, r: 16, t: 34, b: 70 }, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
      hoverlabel: { bgcolor: "#ffffff", font: { size: 13 } }, annotations: [], shapes: [], ...more,
      legend: { orientation: "h", y: -70 / ((more.height ?? 450) - 104), yanchor: "top", x: 0 } };
    ys.forEach((y, row) => s.algorithms.forEach((algorithm, column) => {
      const i = row * n + column, lowest = row === m - 1;
      const across = [column / n + (column ? gap / 2 : 0), (column + 1) / n - (column < n - 1 ? gap / 2 : 0)];
      const down = [1 - (row + 1) / m + (lowest ? 0 : 0.03), 1 - row / m - (row ? 0.03 : 0)];
      made["xaxis" + nth(i)] = { ...line, ...x, domain: across, anchor: "y" + nth(i), matches: i ? "x" : undefined,
        showticklabels: lowest, title: lowest ? x.title : undefined };
      made["yaxis" + nth(i)] = { ...line, ...y, domain: down, anchor: "x" + nth(i), matches: column ? "y" + nth(row * n) : undefined,
        showticklabels: column === 0, title: column ? undefined : y.title };
      if (row === 0) made.annotations.push({ text: "<b>" + plain(algorithm) + "</b>", xref: "x" + nth(i) + " domain", yref: "paper",
        showarrow: false, x: 0.5, y: 1, yanchor: "bottom" });
    }));
    return made;
  }

  const at = (s, algorithm, row = 0) => {
    const i = row * s.algorithms.length + s.algorithms.indexOf(algorithm);
    return { xaxis: "x" + nth(i), yaxis: "y" + nth(i) };
  };

  function steps(values) {
    const ticks = [...new Set(values)].sort((a, b) => a - b);
    const far = Math.log(ticks.at(-1) / ticks[0]) / 12;
    const shown = [];
    for (const t of ticks) if (!shown.length || Math.log(t / shown.at(-1)) >= far) shown.push(t);
    return { type: "log", tickvals: shown, ticktext: shown.map(String) };
  }

  // What all traces of a budget share: its name once in the legend, its colour and mark.
  function style(s, algorithm, epsilon) {
    const b = budget(s.case, epsilon);
    return { name: plain(b.label), legendgroup: epsilon, showlegend: algorithm === s.algorithms[0],
      line: { color: b.colour, width: 2 }, marker: { symbol: markers[order(s.case, epsilon) % markers.length], size: 8, color: b.colour } };
  }

  // Mean, band and star of cells along x.
  function lines(s, algorithm, epsilon, cells, x, best) {
    const like = style(s, algorithm, epsilon), axes = at(s, algorithm);
    const quiet = { hoverinfo: "skip", showlegend: false, legendgroup: epsilon, ...axes };
    const xs = cells.map((c) => c[x]), traces = [];
    if (s.band && cells.length > 1 && cells.every((c) => c.std !== null)) {
      const y = [...cells.map((c) => c.mean + c.std), ...cells.map((c) => Math.max(0, c.mean - c.std)).reverse()];
      traces.push({ ...quiet, x: [...xs, ...[...xs].reverse()], y, fill: "toself", fillcolor: like.line.color + "22", line: { width: 0 },
        mode: "lines" });
    }
    traces.push({ ...like, ...axes, x: xs, y: cells.map((c) => c.mean), mode: "lines+markers",
      customdata: cells.map((c) => [c.std === null ? "" : " ± " + c.std.toFixed(4), c.rounds, c.local_steps, c.trials,
        c.train === null ? "unknown" : c.train.toFixed(4), text(c.spent), c.iterations]),
      hovertemplate: "<b>%{y:.4f}%{customdata[0]}</b><br>" + plain(algorithm) + ", " + like.name + ", would spend %{customdata[5]}<br>"
        + "τ = %{customdata[2]}, %{customdata[1]} rounds, T = %{customdata[6]}<br>%{customdata[3]} trials; training error "
        + "%{customdata[4]}<extra></extra>" });
    if (best) {
      traces.push({ ...quiet, x: [best[x]], y: [best.mean], mode: "markers",
        marker: { symbol: "star", size: 15, color: like.line.color, line: { color: "#111111", width: 1 } } });
    }
    return traces;
  }

  // The error without training, unless it lies far from everything else.
  function untrained(s, traces) {
    const ys = traces.filter((t) => t.customdata).flatMap((t) => t.y);
    const lowest = Math.min(...ys), highest = Math.max(...ys), reach = Math.max(highest - lowest, 0.02 * highest);
    if (s.case.baseline === null || s.case.baseline > highest + reach || s.case.baseline < lowest - reach) return [];
    return s.algorithms.map((_, i) => ({ type: "line", xref: "x" + nth(i) + " domain", yref: "y" + nth(i), x0: 0, x1: 1,
      y0: s.case.baseline, y1: s.case.baseline, line: { color: "#55606e", width: 1, dash: "dash" },
      label: { text: i ? "" : "without training", textposition: "end", yanchor: "top", font: { size: 12, color: "#55606e" } } }));
  }

  const each = (s, make) => s.algorithms.flatMap((algorithm) => s.budgets.flatMap((epsilon) => make(algorithm, epsilon)));
  const errors = { title: { text: "test error" } };
  const cross = (s, epsilon, more) => ({ text: "×", showarrow: false, font: { size: 17, color: budget(s.case, epsilon).colour },
    hovertext: "diverged in a trial", ...more });
  // A cross at the top edge, budgets below each other; an annotation on a logarithmic axis has the logarithm for its place.
  const onTop = (s, algorithm, epsilon, x) => cross(s, epsilon, { x: Math.log10(x), xref: at(s, algorithm).xaxis,
    y: 0.97 - 0.045 * order(s.case, epsilon), yref: at(s, algorithm).yaxis + " domain" });
  const tried = (s) => [...s.case.cells, ...s.case.diverged].filter((c) => c.iterations === s.iterations).map((c) => c.local_steps);

  function drawSteps(s) {
    const traces = each(s, (algorithm, epsilon) => {
      const cells = curve(s.case, algorithm, epsilon, s.clip, s.iterations);
      const o = optimum(s.case, algorithm, epsilon, s.clip, s.iterations);
      return cells.length ? lines(s, algorithm, epsilon, cells, "local_steps", cells.find((c) => c.local_steps === o.local_steps)) : [];
    });
    const x = { title: { text: "local steps τ" }, ...steps(tried(s)) };
    const annotations = each(s, (algorithm, epsilon) => diverged(s.case, algorithm, epsilon, s.clip, s.iterations)
      .map((c) => onTop(s, algorithm, epsilon, c.local_steps)));
    Plotly.react("tau-plot", traces, panels(s, x, [errors], { shapes: untrained(s, traces), annotations, height: 480 }), config);
  }

  function drawSurface(s) {
    const cells = s.case.cells.filter((c) => c.iterations === s.iterations && s.budgets.includes(c.epsilon));
    const taus = [...new Set(tried(s))].sort((a, b) => a - b);
    const labels = s.budgets.map((e) => plain(budget(s.case, e).label.replace("ε = ", "").replace(" (not private)", "")));
    const shapes = [], range = [Math.min(...cells.map((c) => c.mean)), Math.max(...cells.map((c) => c.mean))];
    const traces = s.algorithms.map((algorithm, i) => {
      const z = s.budgets.map((e, row) => {
        const along = curve(s.case, algorithm, e, s.clip, s.iterations), o = optimum(s.case, algorithm, e, s.clip, s.iterations);
        const place = o ? taus.indexOf(o.local_steps) : 0;
        if (o) shapes.push({ type: "rect", xref: "x" + nth(i), yref: "y" + nth(i), x0: place - 0.46, x1: place + 0.46, y0: row - 0.46,
          y1: row + 0.46, line: { color: "#d55e00", width: 3 } });
        return taus.map((tau) => along.find((c) => c.local_steps === tau)?.mean ?? null);
      });
      return { type: "heatmap", x: taus.map(String), y: labels, z, colorscale: "Viridis", reversescale: true, zmin: range[0], zmax: range[1],
        texttemplate: taus.length * s.algorithms.length > 24 ? "" : "%{z:.3f}", showscale: i === 0, colorbar: { title: { text: "test error" } }, ...at(s, algorithm),
        hovertemplate: plain(algorithm) + "<br>τ = %{x}, ε = %{y}<br>%{z:.4f}<extra></extra>" };
    });
    const x = { type: "category", title: { text: "local steps τ" }, showgrid: false };
    const y = { type: "category", title: { text: "budget ε", standoff: 12 }, automargin: true, showgrid: false };
    const annotations = each(s, (algorithm, epsilon) => diverged(s.case, algorithm, epsilon, s.clip, s.iterations).map((c) => {
      const axes = at(s, algorithm);
      return cross(s, epsilon, { x: taus.indexOf(c.local_steps), xref: axes.xaxis, y: s.budgets.indexOf(epsilon), yref: axes.yaxis, font: { size: 17 } });
    }));
    Plotly.react("surface-plot", traces, panels(s, x, [y], { shapes, annotations, height: 120 + 52 * Math.max(3, s.budgets.length) }), config);
  }

  function drawIterations(s) {
    element("iterations-section").hidden = s.case.along.length === 0;
    if (!s.case.along.length) return;
    element("iterations-rule").textContent = s.case.rule;
    const line = (algorithm, epsilon) => s.case.along.find((a) => a.algorithm === algorithm && a.epsilon === epsilon
      && a.clip === clipOf(epsilon, s.clip));
    const annotations = each(s, (algorithm, epsilon) => (line(algorithm, epsilon)?.diverged ?? [])
      .map((T) => onTop(s, algorithm, epsilon, T)));
    const traces = each(s, (algorithm, epsilon) => {
      const along = line(algorithm, epsilon);
      if (!along) return [];
      const cells = along.cells.map(([T, tau]) => s.case.cells.find((c) => c.algorithm === algorithm && c.epsilon === epsilon
        && c.clip === along.clip && c.iterations === T && c.local_steps === tau));
      const best = cells.reduce((a, b) => (b.mean < a.mean ? b : a));
      return [...lines(s, algorithm, epsilon, cells, "iterations", best), { x: cells.map((c) => c.iterations), y: cells.map((c) => c.train),
        mode: "lines", hoverinfo: "skip", line: { dash: "dot", width: 1.3, color: budget(s.case, epsilon).colour }, showlegend: false,
        legendgroup: epsilon, ...at(s, algorithm) }];
    });
    const totals = s.case.along.flatMap((a) => a.diverged);
    const x = { title: { text: "iterations in total T" }, ...steps([...s.case.iterations, ...totals]) };
    Plotly.react("iterations-plot", traces, panels(s, x, [errors], { shapes: untrained(s, traces), annotations, height: 460 }), config);
  }

  function drawClips(s) {
    const finite = s.case.clips.filter((c) => c !== "inf");
    element("clip-section").hidden = finite.length < 2;
    if (finite.length < 2) return;
    const traces = each(s, (algorithm, epsilon) => {
      const optima = finite.map((clip) => optimum(s.case, algorithm, epsilon, clip, s.iterations)).filter((o) => o);
      if (infinite(epsilon) || !optima.length) return [];
      const shift = 1.04 ** (order(s.case, epsilon) - s.case.budgets.length / 2);
      return [{ ...style(s, algorithm, epsilon), ...at(s, algorithm), x: optima.map((o) => Number(o.clip) * shift),
        y: optima.map((o) => o.local_steps), mode: "markers", customdata: optima.map((o) => [o.clip, o.plausible]),
        error_y: { type: "data", symmetric: false, array: optima.map((o) => o.high - o.local_steps),
          arrayminus: optima.map((o) => o.local_steps - o.low), thickness: 1.3, width: 4 },
        hovertemplate: "C = %{customdata[0]}: best τ = %{y}<br>plausible: %{customdata[1]}<extra>%{fullData.name}</extra>" }];
    });
    const x = { title: { text: "clip threshold C (budgets side by side)" }, type: "log", tickvals: finite.map(Number), ticktext: finite };
    const y = { title: { text: "optimal local steps τ" }, ...steps(tried(s)) };
    Plotly.react("clip-plot", traces, panels(s, x, [y], { height: 440 }), config);
  }

  function drawProgress(s) {
    const ways = s.case.curves.filter((c) => s.algorithms.includes(c.algorithm) && s.budgets.includes(c.epsilon) && c.clip === clipOf(c.epsilon, s.clip));
    element("progress-section").hidden = s.case.curves.length === 0;
    if (!s.case.curves.length) return;
    const known = [1, 2, 3].filter((j) => ways.some((way) => way.points.some((p) => p[j] !== null)));
    const traces = ways.flatMap((way) => known.map((j, row) => {
      const points = way.points.filter((p) => p[j] !== null), like = style(s, way.algorithm, way.epsilon);
      return { ...like, ...at(s, way.algorithm, row), x: points.map((p) => p[0]), y: points.map((p) => p[j]), mode: "lines+markers",
        showlegend: like.showlegend && row === 0, marker: { ...like.marker, size: 5 }, line: { ...like.line, width: 1.6 },
        hovertemplate: "%{y:.4f} after %{x} iterations, τ = " + way.local_steps + "<extra>%{fullData.name}</extra>" };
    }));
    const ys = known.map((j) => ({ title: { text: ["test error", "training error", "fraction clipped"][j - 1] } }));
    const few = Math.max(...ways.flatMap((way) => way.points.map((p) => p[0]))) < 10; // beyond, ticks are integers anyway
    const x = { title: { text: "iterations done" }, ...(few ? { dtick: 1 } : {}) };
    Plotly.react("progress-plot", traces, panels(s, x, ys, { height: 130 + 200 * known.length }), config);
  }

  function draw() {
    const s = chosen();
    const index = element("convention-filter").value;
    element("meaning").textContent = s.case.convention + ": " + s.case.meaning + ".";
    for (const row of document.querySelectorAll("tr[data-cases]")) row.hidden = !row.dataset.cases.split(" ").includes(index);
    drawSteps(s); drawSurface(s); drawIterations(s); drawClips(s); drawProgress(s);
  }

  const tasks = [...new Set(data.cases.map((c) => c.task))];
  fill(element("task-filter"), tasks, tasks);
  element("task-filter").addEventListener("change", fillConventions);
  element("convention-filter").addEventListener("change", fillRest);
  for (const id of ["algorithm-filter", "clip-filter", "iterations-filter", "epsilon-filter", "band-filter"]) {
    element(id).addEventListener("change", draw);
  }
  fillConventions();
})();
