// Asks the search of a built site: `node search.js FOLDER QUERY …` prints for each query the pages that it finds, best first.
const fs = require("fs");
const vm = require("vm");

const [folder, ...queries] = process.argv.slice(2);
// What Sphinx's search looks for in a browser when it is loaded; it finds pages without.
const browser = {
  _: (text) => text,
  _ready: () => {},
  document: { getElementById: () => null },
  SPHINX_HIGHLIGHT_ENABLED: false,
};
browser.window = browser;
vm.createContext(browser);
const files = ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"];
const code = files.map((file) => fs.readFileSync(`${folder}/${file}`, "utf8")).join("\n");
vm.runInContext(`${code}\nfind = (query) => Search._performSearch(...Search._parseQuery(query));`, browser);
const found = queries.map((query) => browser.find(query).reverse().map(([page, , anchor]) => page + anchor));
console.log(JSON.stringify(found));
