// Search of the Chinese book. Chinese has no spaces between words, so a word of the question is looked for as it is, in titles
// and texts; all words must be there. mdBook's own search box and list of results show what this returns.
(() => {
    const BEFORE = 16;
    const AFTER = 60;

    /** The words of a question. */
    function words(question) {
        return question.toLowerCase().split(/\s+/).filter((word) => word !== "");
    }

    /** How well a section fits; 0 if it does not. */
    function fit(section, wanted) {
        let sum = 0;
        for (const word of wanted) {
            const inTitle = section.title.includes(word);
            const inPath = section.path.includes(word);
            const times = section.body.split(word).length - 1;
            if (!inTitle && !inPath && times === 0) return 0;
            sum += (inTitle ? 20 : 0) + (inPath ? 5 : 0) + Math.min(times, 5);
        }
        return sum;
    }

    /** The part of a text around the first hit, with spaces around hits: mdBook marks words between spaces. */
    function excerpt(body, wanted) {
        const text = body.toLowerCase();
        const hits = wanted.map((word) => text.indexOf(word)).filter((at) => at >= 0);
        const first = hits.length ? Math.min(...hits) : 0;
        const from = Math.max(0, first - BEFORE);
        let part = body.slice(from, first + AFTER);
        for (const word of wanted) {
            const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
            part = part.replace(new RegExp(escaped, "gi"), " $& ");
        }
        return (from > 0 ? "…" : "") + part + (first + AFTER < body.length ? " …" : "");
    }

    function search(sections, question) {
        const wanted = words(question);
        if (wanted.length === 0) return [];
        return sections
            .map((section) => ({ section, score: fit(section, wanted) }))
            .filter(({ score }) => score > 0)
            .sort((a, b) => b.score - a.score || a.section.number - b.section.number)
            .map(({ section, score }) => ({
                ref: section.doc.id,
                score,
                doc: { ...section.doc, body: excerpt(section.doc.body, wanted) },
            }));
    }

    function load(index) {
        const sections = Object.values(index.docs).map((doc) => ({
            doc,
            number: Number(doc.id),
            title: doc.title.toLowerCase(),
            path: doc.breadcrumbs.toLowerCase(),
            body: doc.body.toLowerCase(),
        }));
        return { search: (question) => search(sections, question) };
    }

    if (typeof elasticlunr !== "undefined") elasticlunr.Index.load = load;
    if (typeof module !== "undefined") module.exports = { load };
})();
