// Loads MathJax from this folder. Sphinx appends ?v=HASH to local scripts, which MathJax would take for a component to fetch.
(() => {
  const script = document.createElement("script");
  script.src = new URL("mathjax/es5/tex-mml-chtml.js", document.currentScript.src).href;
  document.head.append(script);
})();
