//! Tests of the built program, its files and its documents.

mod docs;
mod quickstart;
mod tidy;
