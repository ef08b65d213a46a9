//! A flamegraph by inferno. With a base, the width is the profile's value and the colour the change.

mod lines;

use std::io::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{Options as Flamegraph, from_lines};
use sha2::{Digest, Sha256};

use self::lines::Lines;
use super::RenderInput;
use crate::code_origin::CodeOrigin;
use crate::error::{Error, Result};
use crate::fold::Folded;
use crate::names::StringId;
use crate::options::Options;
use crate::profile::sample_types::Unit;

/// `Content-Security-Policy` for a server that shows the SVG: allows only inferno's script, whatever names the
/// symbols have.
pub static FLAMEGRAPH_POLICY: LazyLock<String> = LazyLock::new(|| {
    let mut sample = Vec::new();
    // The script is the same in every flamegraph; if there is none, none is allowed.
    let script = match from_lines(&mut common_flamegraph_options(), ["a 1"], &mut sample) {
        Ok(()) => first_script(&String::from_utf8_lossy(&sample)),
        Err(_) => String::new(),
    };
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-hashes' 'sha256-{}' \
         'sha256-{}'",
        hash(&script),
        hash("init(evt)")
    )
});

/// Returns the text of the first script element of `svg`, without its CDATA marks; empty if there is none.
fn first_script(svg: &str) -> String {
    let element = svg.split_once("<script").and_then(|(_, rest)| {
        let (_, rest) = rest.split_once('>')?;
        Some(rest.split_once("</script>")?.0)
    });
    element
        .unwrap_or_default()
        .replace("<![CDATA[", "")
        .replace("]]>", "")
}

const GREY: Color = Color {
    r: 210,
    g: 210,
    b: 210,
};

/// Returns the options of inferno, which draws the picture, that all flamegraphs share: colours depend on names, not on
/// chance.
fn common_flamegraph_options() -> Flamegraph<'static> {
    let mut options = Flamegraph::default();
    options.deterministic = true;
    options
}

/// Returns a palette for inferno that makes all functions grey that are not the program's own. inferno ignores it in a
/// comparison, in which colours show the change. Names are written as in the lines for inferno, with `:` for `;`.
fn grey_palette(folded: &Folded<'_>) -> PaletteMap {
    let mut palette = PaletteMap::default();
    for (index, origin) in folded.origins.iter().enumerate() {
        if *origin != CodeOrigin::Program {
            let name = folded.functions.get(StringId(index as u32));
            palette.insert(name.replace(';', ":"), GREY);
        }
    }
    palette
}

/// Writes the flamegraph as SVG. In a comparison, widths show the profile's values and colours the changes from the
/// base. Fails if no stack has a positive value, or the drawn stacks exceed the memory budget.
pub(super) fn write_flamegraph(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let folded = input.fold_stacks(options);
    if folded.stacks.values().all(|values| values.new <= 0) {
        return Err(Error::Empty {
            reason: "no value is positive, so there is nothing to draw; --format text, tree and dot show negative ones".into(),
        });
    }
    let lines = Lines::new(&folded, input.base.is_some(), input.memory_left())?;
    let mut flamegraph = self::common_flamegraph_options();
    flamegraph.title = match &input.base_name {
        Some(base) => format!("{}, compared with {base}", input.name),
        None => input.name.clone(),
    };
    flamegraph.subtitle = Some(input.heading(options));
    let value_type = input.value_type(options.sample_type);
    flamegraph.count_name = match value_type.unit {
        Unit::Other(_) if value_type.name == options.sample_type.name() => "objects".into(),
        unit => unit.name().to_owned(),
    };
    let mut palette = grey_palette(&folded);
    if !options.origin_rules.flat {
        flamegraph.palette_map = Some(&mut palette);
    }
    // The stacks are large, and inferno's boxes are, too.
    drop(folded);
    from_lines(&mut flamegraph, lines.iter(), out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_equal_in_all_flamegraphs() {
        let script_of = |lines: &[&str], change: &dyn Fn(&mut Flamegraph<'_>)| {
            let (mut options, mut svg) = (common_flamegraph_options(), Vec::new());
            change(&mut options);
            from_lines(&mut options, lines.iter().copied(), &mut svg).unwrap();
            first_script(&String::from_utf8(svg).unwrap())
        };
        let plain = script_of(&["a 1"], &|_| {});
        assert!(plain.contains("function init(evt)"), "{plain}");
        let other = script_of(&["main;<script>;b 7 9"], &|options| {
            options.title = "</script>".into();
            options.count_name = "bytes".into();
            options.subtitle = Some("]]>".into());
        });
        assert_eq!(plain, other);
    }
}
