// Code with many inlined functions, generic ones and closures.
use std::collections::{BTreeMap, HashMap};

trait Total {
    fn total(&self) -> u64;
}

struct Item(String, u64);

impl Total for Vec<Item> {
    fn total(&self) -> u64 {
        self.iter().map(|Item(name, price)| price + name.len() as u64).sum()
    }
}

fn words(text: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for word in text.split_whitespace().map(str::to_lowercase) {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut shelves: BTreeMap<String, Vec<Item>> = BTreeMap::new();
    for (index, argument) in arguments.iter().enumerate() {
        let shelf = shelves.entry(argument.clone()).or_default();
        shelf.push(Item(format!("{index:?}"), index as u64));
        shelf.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    }
    let sums: Vec<u64> = shelves.values().map(Total::total).collect();
    println!("{sums:?} {:?}", words(&arguments.join(" ")));
}
