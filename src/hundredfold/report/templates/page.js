// Draws the charts and updates them with the colour scheme and the chosen x axis.
(() => {
  "use strict";

  const charts = [...document.querySelectorAll(".chart")];
  const touch = matchMedia("(pointer: coarse)").matches;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // Plotly template: defaults in the page's own style.
  function template() {
    const soft = { color: colour("--soft") };
    const axis = {
      automargin: true,
      gridcolor: colour("--grid"),
      linecolor: colour("--line"),
      zerolinecolor: colour("--line"),
      zerolinewidth: 1,
      spikecolor: colour("--soft"),
      spikethickness: 1,
      spikedash: "dot",
      tickfont: { ...soft, size: 11 },
      title: { font: { ...soft, size: 12 }, standoff: 8 },
    };
    const transparent = "rgba(0,0,0,0)";
    return {
      layout: {
        paper_bgcolor: transparent,
        // The card's colour: plotly picks contrasting text colours against it.
        plot_bgcolor: colour("--card"),
        font: { family: colour("--font"), color: colour("--ink"), size: 12 },
        margin: { l: 8, r: 12, t: 12, b: 8 },
        xaxis: axis,
        yaxis: axis,
        legend: {
          orientation: "h",
          traceorder: "normal",
          x: 0,
          y: 1.02,
          yanchor: "bottom",
          bgcolor: transparent,
        },
        hoverlabel: {
          bgcolor: colour("--card"),
          bordercolor: colour("--line"),
          font: { color: colour("--ink") },
        },
        // Touch scrolls the page; a mouse zooms.
        dragmode: touch ? false : "zoom",
      },
      // Perceptually uniform and safe for colour-blind readers.
      data: { heatmap: [{ colorscale: "Cividis", colorbar: { outlinewidth: 0, thickness: 12 } }] },
    };
  }

  async function draw(chart) {
    const figure = JSON.parse(chart.querySelector("script").textContent);
    chart.textContent = "";
    try {
      const layout = { ...figure.layout, template: template(), autosize: true };
      await Plotly.newPlot(chart, figure.data, layout, {
        responsive: true,
        displayModeBar: false,
      });
    } catch (error) {
      chart.classList.add("failed");
      chart.textContent = `This chart could not be drawn: ${error}`;
    }
  }

  function switchAxis(name) {
    for (const chart of charts) {
      const titles = chart.layout?.meta;
      if (!titles?.[name]) continue;
      const x = chart.data.map((trace) => trace.meta?.[name] ?? trace.x);
      Plotly.update(chart, { x }, { "xaxis.title.text": titles[name], "xaxis.autorange": true });
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts) if (chart.layout) Plotly.relayout(chart, { template: template() });
  });

  Promise.all(charts.map(draw)).then(() => {
    const axes = document.querySelector(".switch");
    axes.hidden = !charts.some((chart) => chart.layout?.meta?.clock);
    axes.addEventListener("change", (event) => switchAxis(event.target.value));
    document.documentElement.dataset.charts = "drawn";
  });
})();
