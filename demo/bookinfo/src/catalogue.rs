//! The one book of the sample, and the ratings that exist from the start.

use serde::Serialize;

/// The product all sample data is about.
pub(crate) const PRODUCT: &str = "a071c269-369c-4f79-be03-6a41f27d6b5f";

/// Facts about a book.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Book {
    pub id: &'static str,
    pub title: &'static str,
    pub author: &'static str,
    pub year: u16,
    pub kind: &'static str,
    pub pages: u16,
    pub publisher: &'static str,
    pub language: &'static str,
    pub isbn10: &'static str,
    pub isbn13: &'static str,
}

/// The book.
pub(crate) const BOOK: Book = Book {
    id: PRODUCT,
    title: "The Comedy of Errors",
    author: "William Shakespeare",
    year: 1595,
    kind: "paperback",
    pages: 200,
    publisher: "PublisherA",
    language: "English",
    isbn10: "1234567890",
    isbn13: "123-1234567890",
};

/// A review and the rating given with it.
pub(crate) struct Review {
    pub id: &'static str,
    pub reviewer: &'static str,
    pub reviewer_id: &'static str,
    pub text: &'static str,
    pub rating_id: &'static str,
    /// Stars the ratings service is seeded with.
    pub stars: u8,
}

/// The reviews.
pub(crate) const REVIEWS: [Review; 2] = [
    Review {
        id: "3af31b0d-3c33-4f3c-9ff0-7b8a0e9a2c11",
        reviewer: "Reviewer 1",
        reviewer_id: "9bc908be-0717-4eab-bb51-ea14f669ef20",
        text: "An extremely entertaining play by Shakespeare. The slapstick humour is refreshing!",
        rating_id: "2099a055-1e21-46ef-825e-9e0de93554ea",
        stars: 5,
    },
    Review {
        id: "c1a4ab1b-2f0e-4f7d-8ef5-52b53dcd2f50",
        reviewer: "Reviewer 2",
        reviewer_id: "5d4f6a8e-14cb-4b3c-8a77-1c7f2f0a9d34",
        text: "Absolutely fun and entertaining. The play lacks thematic depth when compared to other plays by Shakespeare.",
        rating_id: "7e3b7c52-9d0a-4a3f-9c43-0f1a6d2b8e75",
        stars: 4,
    },
];
