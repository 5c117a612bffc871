// Loads the MathJax that lies beside this book. Sphinx would append ?v=HASH to the file itself, which MathJax takes for a
// component to fetch; and a name in .js would be loaded on every page.
(() => {
  const script = document.createElement("script");
  script.src = new URL("../mathjax/es5/tex-mml-chtml.js", document.currentScript.src).href;
  document.head.append(script);
})();
