//! `millrace` as the proving ground runs it: the same command line, built with feature `proving` (failpoints, a clock from a
//! file, switched-off safeguards), and with `echo`, two streams that prove what the product's own do not use yet. It never ships.

fn main() -> std::process::ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((first, rest)) if first == "echo" => millrace_tests::echo::main(rest),
        _ => millrace::cli::main(),
    }
}
