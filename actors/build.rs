//! A new migration file must be seen by the next build.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
    println!("cargo:rerun-if-changed=build.rs");
}
