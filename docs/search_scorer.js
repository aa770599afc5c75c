// How the site's search ranks what it finds: guides first, decisions and changes last. Sphinx takes the object as a whole
// (`html_search_scorer`); its numbers, those of `pages` apart, are Sphinx's own.
var Scorer = {
  // Added to the score of pages whose names begin so. A title that matches is worth 15, a word in the text 5.
  pages: [
    ["guides/", 20],
    ["start", 15],
    ["concepts", 15],
    ["examples", 5],
    ["benchmarks", -10],
    ["decisions/", -20],
    ["changelog", -20],
    ["contributing", -20],
  ],
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    if (kind === "object") return score + 10; // a name of the API, exactly: beside the guides that use it
    const page = Scorer.pages.find(([beginning]) => docname.startsWith(beginning));
    return score + (page ? page[1] : 0) + (kind === "title" ? 3 : 0); // a section before its page
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
