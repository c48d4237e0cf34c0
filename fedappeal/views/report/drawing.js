// Draws a Plotly figure into the element of an id, in the page's own colours.
function drawFigure(id, figure) {
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const place = document.getElementById(id);
  const size = { width: place.clientWidth, height: place.clientHeight };  // Plotly keeps the last one else
  const layout = { ...figure.layout, ...size, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12 } };
  for (const name of Object.keys(layout).filter(name => /^[xy]axis/.test(name))) {
    layout[name] = { ...layout[name], gridcolor: colour("--line"), zerolinecolor: colour("--line"),
      linecolor: colour("--line") };
    // On a phone there is room for a few numbers alone.
    if (/^x/.test(name) && place.clientWidth < 500) layout[name].nticks = Math.min(layout[name].nticks || 6, 6);
    // Names that would lie on each other are left out; each is shown where the pointer is.
    const names = /^x/.test(name) ? (layout[name].tickvals || []).length : 0;
    if (names * 14 > place.clientWidth - 60) layout[name].showticklabels = false;
  }
  return Plotly.react(place, figure.data, layout, { responsive: true, displayModeBar: false });
}
