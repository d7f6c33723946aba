//! The command line, wiring only.

/// A decoded record is a dozen small pieces, freed a moment later: the allocator is a fifth of the consumer's CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    millrace::cli::main()
}
