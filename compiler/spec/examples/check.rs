fn main() {
    let lib = spec::Library::embedded();
    let path = std::env::args().nth(1).unwrap();
    let t = std::time::Instant::now();
    let c = spec::check_path(std::path::Path::new(&path), &lib, &spec::Choices::default());
    eprintln!("{:?}", t.elapsed());
    print!("{}", spec::render(&c.diagnostics, &c.sources, false));
    if let Some(m) = &c.model { println!("{} parameters, {} blocks", m.facts.parameters(), m.blocks.len());
      println!("{}", ir::print_model(m)); }
}
