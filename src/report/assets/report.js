// Draws the figures of the page in the reader's colours. The figures come from the element
// "figures"; what they mean is in src/report/figure.hpp.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "hexagon", "star"];
  const scale = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];

  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads a little HTML in its texts; ours are plain.
  const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // Colours spread over the scale, so that few lines differ well and many stay in order.
  function colour(trace) {
    if (trace.neutral) return css("--neutral");
    const last = scale.length - 1;
    if (trace.colours > scale.length) {
      const at = last * trace.colour / (trace.colours - 1), low = Math.floor(at);
      return mix(css(scale[low]), css(scale[Math.min(low + 1, last)]), at - low);
    }
    const picks = [[1], [1, 5], [0, 2, 5], [0, 2, 4, 5], [0, 1, 2, 4, 5], [0, 1, 2, 4, 5, 6],
      [0, 1, 2, 3, 4, 5, 6]];
    return css(scale[picks[Math.max(trace.colours, 1) - 1][trace.colour] ?? 1]);
  }
  function mix(a, b, share) {
    const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
    return "#" + [0, 1, 2].map(i => Math.round(part(a, i) * (1 - share) + part(b, i) * share)
      .toString(16).padStart(2, "0")).join("");
  }

  const fade = c => c + "80";

  function spans(trace, thickness) {
    // One path for all spans of a kind: thousands of them stay quick.
    const x = [], y = [];
    trace.x.forEach((start, i) => { x.push(start, start + trace.width[i], null); y.push(trace.y[i], trace.y[i], null); });
    return {x, y, type: "scatter", mode: "lines", line: {color: colour(trace), width: thickness}, hoverinfo: "x+name"};
  }

  function draw(figure, trace) {
    const base = {name: plain(trace.name), legendgroup: trace.name || undefined, showlegend: trace.name !== ""};
    const c = colour(trace);
    if (trace.shape === "spans")
      return {...base, ...spans(trace, figure.rows.length ? 11 : 2.5)};
    if (trace.shape === "limit")
      return {...base, x: trace.x, y: trace.y, type: "scatter", mode: "lines", line: {color: css("--neutral"), width: 1.5, dash: "dash"}, hoverinfo: "skip"};
    if (trace.shape === "line")
      return {...base, x: trace.x, y: trace.y, type: "scatter", mode: "lines", line: {color: c, width: 1.6}, hoverinfo: trace.name ? "x+y+name" : "skip"};
    const out = {...base, x: trace.x, y: trace.y, type: "scatter", mode: "markers",
      marker: {color: c, size: 6.5, symbol: symbols[trace.colour % symbols.length], line: {color: css("--panel"), width: .8}},
      hovertemplate: "%{x:.4g}, %{y:.4g}<extra>" + plain(trace.name) + "</extra>"};
    if (trace.low && trace.high)
      out.error_y = {type: "data", symmetric: false, array: trace.high.map((h, i) => h - trace.y[i]),
        arrayminus: trace.low.map((l, i) => trace.y[i] - l), color: fade(c), thickness: .8, width: 0};
    return out;
  }

  function layout(figure, narrow) {
    const axis = (title, log) => ({
      title: {text: plain(title), standoff: 10, font: {size: 12.5, color: css("--muted")}}, type: log ? "log" : "linear",
      gridcolor: css("--grid"), linecolor: css("--rule"), zeroline: false, ticks: "outside", ticklen: 4,
      tickcolor: css("--rule"), tickfont: {size: 12, color: css("--muted")}, automargin: true,
      ...(log ? {dtick: 1, exponentformat: "none", minor: {ticks: "outside", ticklen: 2, tickcolor: css("--rule"), dtick: "D1"}} : {nticks: narrow ? 6 : 10}),
    });
    const x = axis(figure.xTitle, figure.logX), y = axis(figure.yTitle, figure.logY);
    if (figure.xUntil) x.range = [0, figure.xUntil];
    if (figure.rows.length)
      Object.assign(y, {tickvals: figure.rows.map((_, i) => i), ticktext: figure.rows.map(plain), nticks: undefined,
        autorange: "reversed", showgrid: false, ticks: "", tickfont: {size: narrow ? 9 : 11, color: css("--muted")}});
    else if (figure.fromZero) y.rangemode = "tozero";
    return {
      font: {family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--ink")},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: {l: 56, r: 12, t: 30, b: 46}, xaxis: x, yaxis: y,
      legend: {orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", font: {size: 12}, itemsizing: "constant", bgcolor: "rgba(0,0,0,0)"},
      hoverlabel: {bgcolor: css("--panel"), bordercolor: css("--rule"), font: {color: css("--ink"), size: 12}},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: css("--neutral"), activecolor: css("--accent")},
      hovermode: "closest", dragmode: narrow ? false : "zoom",
    };
  }

  function show(entry) {
    const {figure, element} = entry;
    const narrow = element.clientWidth < 520;
    const panel = figure.panels[entry.now];
    if (figure.rows.length) element.style.height = Math.max(220, figure.rows.length * 20 + 120) + "px";
    Plotly.react(element, panel.traces.map(t => draw(figure, t)), layout(figure, narrow),
      {responsive: true, displaylogo: false, displayModeBar: "hover",
       modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
       toImageButtonOptions: {format: "svg", filename: figure.title}});
    for (const update of entry.updates) update();
  }

  // Views of a figure: a list for the group, buttons for the key.
  function controls(entry) {
    const {figure} = entry;
    if (figure.panels.length < 2) return;
    const place = document.querySelector(`.pick[data-for="${entry.element.id}"]`);
    const groups = [...new Set(figure.panels.map(p => p.group))];
    const keys = document.createElement("div");
    keys.className = "keys";
    if (groups.length > 1) {
      const select = document.createElement("select");
      select.setAttribute("aria-label", "Set of samples");
      for (const group of groups) select.add(new Option(group, group));
      select.onchange = () => {
        const key = figure.panels[entry.now].key;
        const inside = figure.panels.map((p, i) => [p, i]).filter(([p]) => p.group === select.value);
        choose(entry, (inside.find(([p]) => p.key === key) ?? inside[0])[1]);
      };
      entry.updates.push(() => { select.value = figure.panels[entry.now].group; });
      place.append(select);
    }
    place.append(keys);
    entry.updates.push(() => {
      const group = figure.panels[entry.now].group;
      keys.replaceChildren(...figure.panels.map((p, i) => [p, i])
        .filter(([p]) => p.group === group && p.key !== "").map(([p, i]) => {
          const button = document.createElement("button");
          button.type = "button";
          button.textContent = p.key;
          button.setAttribute("aria-pressed", String(i === entry.now));
          button.onclick = () => choose(entry, i);
          return button;
        }));
    });
  }

  function choose(entry, index) {
    const wanted = entry.figure.panels[index];
    for (const other of entries) {
      if (other !== entry && (other.figure.link === "" || other.figure.link !== entry.figure.link)) continue;
      const at = other.figure.panels.findIndex(p => p.group === wanted.group && p.key === wanted.key);
      if (at < 0) continue;
      other.now = at;
      show(other);
    }
  }

  const entries = figures.map((figure, i) => ({
    figure, element: document.getElementById(`plot-${i + 1}`), now: figure.shown, updates: []}));
  entries.forEach(controls);
  entries.forEach(show);
  dark.addEventListener("change", () => entries.forEach(show));
  document.documentElement.dataset.drawn = String(entries.length);
})();
