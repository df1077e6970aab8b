//! Prints the tables of docs/performance.md: `cargo run --release --example kv_forecast [TOKENS]`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokens = std::env::args().nth(1).map(|text| text.parse());
    let tokens = tokens.transpose()?.unwrap_or(32768);
    print!("{}", seqshift::kv::forecast::tables(tokens)?);
    Ok(())
}
