//! How releases of this crate's program are linked.

fn main() {
    tulle_link::small();
}
