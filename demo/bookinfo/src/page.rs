//! The page's HTML. Pure: data in, text out; every value is escaped.

use crate::reviews::RatedReview;
use serde::Deserialize;
use std::fmt::Write;

/// The book as the details service describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Book {
    pub title: String,
    pub author: String,
    pub year: u16,
    pub kind: String,
    pub pages: u16,
    pub publisher: String,
    pub language: String,
    pub isbn10: String,
    pub isbn13: String,
}

/// One hop of the request and the identity it was made under.
pub(crate) struct Hop {
    /// The called service.
    pub service: &'static str,
    /// The caller's SPIFFE id; none without a mesh.
    pub caller: Option<String>,
}

/// Everything on the page; a missing part carries the reason.
pub(crate) struct Page {
    pub book: Result<Book, String>,
    pub reviews: Result<Vec<RatedReview>, String>,
    pub hops: Vec<Hop>,
}

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Bookinfo</title>
<link rel="icon" href="data:,">
<style>
  :root { --ink: #1c2430; --soft: #5b6675; --line: #e3e8ef; --ground: #f5f7fa; --card: #fff; --accent: #2a6f62; --star: #d9920a; --bad: #a8322a; }
  @media (prefers-color-scheme: dark) { :root { --ink: #e7ecf3; --soft: #9aa6b6; --line: #2b3442; --ground: #12161d; --card: #1a202a; --accent: #6cc5b3; --star: #f0b541; --bad: #f08a80; } }
  * { box-sizing: border-box }
  body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, sans-serif }
  header { background: var(--card); border-bottom: 1px solid var(--line) }
  header div, main { max-width: 60rem; margin: 0 auto; padding: 1rem 1.25rem }
  header b { letter-spacing: .02em } header span { color: var(--soft); margin-left: .6rem; font-size: .9rem }
  main { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); padding-bottom: 3rem }
  .wide { grid-column: 1 / -1 }
  h1 { font-size: 2rem; line-height: 1.2; margin: 1.2rem 0 .2rem } h2 { font-size: 1.05rem; margin: 0 0 .8rem }
  .by { color: var(--soft); margin: 0 }
  section { background: var(--card); border: 1px solid var(--line); border-radius: .75rem; padding: 1.25rem }
  table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .4rem 0; border-top: 1px solid var(--line); vertical-align: top }
  tr:first-child > * { border-top: 0 } th { font-weight: 500; color: var(--soft); width: 8rem; padding-right: 1rem }
  blockquote { margin: 0 0 1.1rem; padding: 0 } blockquote:last-child { margin: 0 } blockquote p { margin: 0 }
  footer { color: var(--soft); font-size: .92rem } .stars { color: var(--star); letter-spacing: .1em }
  code { font: .86rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere } .id { color: var(--accent) } .bad { color: var(--bad) } .none { color: var(--soft) }
</style>
</head>
<body>
<header><div><b>Bookinfo</b><span>a sample behind a mesh</span></div></header>
<main>
"#;

impl Page {
    /// The whole document.
    pub(crate) fn render(&self) -> String {
        let mut out = String::with_capacity(8 * 1024);
        out.push_str(HEAD);
        self.book_card(&mut out);
        self.review_card(&mut out);
        self.hop_card(&mut out);
        out.push_str("</main>\n</body>\n</html>\n");
        out
    }

    fn book_card(&self, out: &mut String) {
        let book = match &self.book {
            Ok(book) => book,
            Err(why) => return missing(out, "Details", why),
        };
        let (title, author) = (escape(&book.title), escape(&book.author));
        let (year, pages) = (book.year.to_string(), book.pages.to_string());
        put(
            out,
            format_args!(
                "<div class=\"wide\"><h1>{title}</h1><p class=\"by\">{author}, {year}</p></div>\n"
            ),
        );
        out.push_str("<section><h2>Details</h2><table>\n");
        let rows = [
            ("Type", book.kind.as_str()),
            ("Pages", &pages),
            ("Publisher", &book.publisher),
            ("Language", &book.language),
            ("ISBN-10", &book.isbn10),
            ("ISBN-13", &book.isbn13),
        ];
        for (name, value) in rows {
            let value = escape(value);
            put(
                out,
                format_args!("<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>\n"),
            );
        }
        out.push_str("</table></section>\n");
    }

    fn review_card(&self, out: &mut String) {
        let reviews = match &self.reviews {
            Ok(reviews) => reviews,
            Err(why) => return missing(out, "Reviews", why),
        };
        out.push_str("<section><h2>Reviews</h2>\n");
        for review in reviews {
            let (text, reviewer) = (escape(&review.text), escape(&review.reviewer));
            put(
                out,
                format_args!("<blockquote><p>{text}</p><footer>{reviewer} "),
            );
            match review.rating {
                Some(rating) => {
                    let full = usize::from(rating.min(5));
                    let stars = "★".repeat(full) + &"☆".repeat(5 - full);
                    put(
                        out,
                        format_args!(
                            "<span class=\"stars\" role=\"img\" aria-label=\"{full} of 5 stars\">{stars}</span>"
                        ),
                    );
                }
                None => {
                    let why = escape(review.rating_error.as_deref().unwrap_or("no rating"));
                    put(
                        out,
                        format_args!("<span class=\"bad\">no rating: {why}</span>"),
                    );
                }
            }
            out.push_str("</footer></blockquote>\n");
        }
        out.push_str("</section>\n");
    }

    fn hop_card(&self, out: &mut String) {
        out.push_str("<section class=\"wide\"><h2>Who called whom for this page</h2><table>\n");
        for hop in &self.hops {
            let caller = match &hop.caller {
                Some(id) => format!("<code class=\"id\">{}</code>", escape(id)),
                None => "<span class=\"none\">no verified identity</span>".into(),
            };
            let service = hop.service;
            put(
                out,
                format_args!(
                    "<tr><th scope=\"row\">{service}</th><td>called by {caller}</td></tr>\n"
                ),
            );
        }
        out.push_str("</table></section>\n");
    }
}

fn missing(out: &mut String, what: &str, why: &str) {
    let why = escape(why);
    put(
        out,
        format_args!(
            "<section><h2>{what}</h2><p class=\"bad\">Not available: {why}</p></section>\n"
        ),
    );
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(rating: Option<u8>) -> RatedReview {
        RatedReview {
            id: "1".into(),
            reviewer: "R".into(),
            text: "T".into(),
            rating,
            rating_error: rating.is_none().then(|| "ratings answered 403".into()),
        }
    }

    #[test]
    fn shows_stars_reasons_and_callers() {
        let page = Page {
            book: Err("details cannot be reached".into()),
            reviews: Ok(vec![review(Some(4)), review(None), review(Some(200))]),
            hops: vec![
                Hop {
                    service: "reviews",
                    caller: Some("spiffe://m/svc/productpage".into()),
                },
                Hop {
                    service: "ratings",
                    caller: None,
                },
            ],
        };
        let html = page.render();
        assert!(html.contains("★★★★☆<"));
        assert!(html.contains("★★★★★<"));
        assert!(html.contains("no rating: ratings answered 403"));
        assert!(html.contains("details cannot be reached"));
        assert!(html.contains("spiffe://m/svc/productpage"));
        assert!(html.contains("no verified identity"));
    }

    #[test]
    fn values_cannot_become_markup() {
        let page = Page {
            book: Err("<script>".into()),
            reviews: Ok(vec![]),
            hops: vec![Hop {
                service: "details",
                caller: Some("\"><img>".into()),
            }],
        };
        let html = page.render();
        assert!(!html.contains("<script>") && !html.contains("<img>"));
    }
}
