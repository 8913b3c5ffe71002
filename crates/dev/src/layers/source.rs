//! One file as tokens: modules, `use` lines, and paths in code, macros and attributes.
//!
//! It uses tokens, not a syntax tree: the arguments of a macro have only tokens, and a path looks
//! the same everywhere. Everything under `#[cfg(test)]` or `#[test]` is left out.

use std::str::FromStr as _;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A path as written (`crate::plan::Plan`), from its first segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The segments. An imported `self` or `*` at the end is left out.
    pub segments: Vec<String>,
    /// The line, from 1.
    pub line: usize,
}

/// A name that a `use` line adds to its module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// The name in this module; `*` for all names.
    pub name: String,
    /// The path that the name stands for.
    pub path: Path,
}

/// The content of a module, without the code for tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Modules with a separate file: `mod name;`.
    pub files: Vec<String>,
    /// Modules with a separate file that are only for tests.
    pub tests: Vec<String>,
    /// Modules within this file: `mod name { .. }`.
    pub inline: Vec<(String, Module)>,
    /// What `use` lines import, also within functions.
    pub imports: Vec<Import>,
    /// The other paths, if they have at least two segments.
    pub paths: Vec<Path>,
}

/// Reads a file.
///
/// # Errors
/// The text is not made of Rust tokens.
pub fn read(text: &str) -> Result<Module, String> {
    let tokens = TokenStream::from_str(text)
        .map_err(|error| format!("line {}", error.span().start().line))?;
    let mut module = Module::default();
    scan(&tokens.into_iter().collect::<Vec<_>>(), &mut module);
    Ok(module)
}

/// The first words of an item, after attributes and visibility.
const ITEMS: [&str; 15] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "unsafe",
    "use",
];

fn scan(tokens: &[TokenTree], module: &mut Module) {
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        at += match rest {
            [TokenTree::Punct(hash), TokenTree::Group(attribute), ..]
                if hash.as_char() == '#' && attribute.delimiter() == Delimiter::Bracket =>
            {
                if for_tests(attribute.stream()) {
                    let length = node(rest);
                    if let [.., TokenTree::Ident(word), TokenTree::Ident(name), _] = &rest[..length]
                        && word == "mod"
                    {
                        module.tests.push(plain(&name.to_string()));
                    }
                    length
                } else {
                    attribute_paths(attribute.stream(), module);
                    2
                }
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end), ..]
                if word == "mod" && end.as_char() == ';' =>
            {
                module.files.push(plain(&name.to_string()));
                3
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..]
                if word == "mod" && body.delimiter() == Delimiter::Brace =>
            {
                let mut inner = Module::default();
                scan(&body.stream().into_iter().collect::<Vec<_>>(), &mut inner);
                module.inline.push((plain(&name.to_string()), inner));
                3
            }
            // Not the `use<'a>` of a type.
            [TokenTree::Ident(word), next, ..] if word == "use" && !is_punct(next, '<') => {
                let length =
                    rest.iter().position(|token| is_punct(token, ';')).unwrap_or(rest.len());
                use_tree(&rest[1..length], &[], &mut module.imports);
                length
            }
            [TokenTree::Group(group), ..] => {
                scan(&group.stream().into_iter().collect::<Vec<_>>(), module);
                1
            }
            [TokenTree::Ident(_), ..] => {
                let (path, length) = path(rest);
                // A method, a lifetime, or the rest of `<T as Trait>::name` is not a path.
                let continued = at > 0
                    && matches!(&tokens[at - 1], TokenTree::Punct(before)
                    if before.as_char() == '\''
                        || before.as_char() == '.' && !is_range(&tokens[..at])
                        || before.as_char() == ':' && is_double_colon(&tokens[..at]));
                if path.segments.len() > 1 && !continued {
                    module.paths.push(path);
                }
                length
            }
            _ => 1,
        };
    }
}

/// Whether tokens end in `..`.
fn is_range(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [.., TokenTree::Punct(a), TokenTree::Punct(b)]
        if a.as_char() == '.' && a.spacing() == Spacing::Joint && b.as_char() == '.')
}

/// Whether tokens end in `name::` or `>::`. A `::` at the start of a path does not count.
fn is_double_colon(tokens: &[TokenTree]) -> bool {
    match tokens {
        [.., before, TokenTree::Punct(a), TokenTree::Punct(b)]
            if a.as_char() == ':' && a.spacing() == Spacing::Joint && b.as_char() == ':' =>
        {
            matches!(before, TokenTree::Ident(_)) || is_punct(before, '>')
        }
        _ => false,
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// The name of a raw identifier too.
fn plain(name: &str) -> String {
    name.strip_prefix("r#").unwrap_or(name).to_owned()
}

/// The path at the start of the tokens, which start with a name, and its length in tokens.
fn path(tokens: &[TokenTree]) -> (Path, usize) {
    let mut path = Path { segments: Vec::new(), line: 0 };
    let mut length = 0;
    while let Some(TokenTree::Ident(name)) = tokens.get(length) {
        if path.segments.is_empty() {
            path.line = name.span().start().line;
        }
        path.segments.push(plain(&name.to_string()));
        length += 1;
        match &tokens[length..] {
            [a, b, TokenTree::Ident(_), ..] if is_punct(a, ':') && is_punct(b, ':') => length += 2,
            _ => break,
        }
    }
    (path, length)
}

/// The names that a `use` tree imports, below a prefix.
fn use_tree(tokens: &[TokenTree], prefix: &[String], imports: &mut Vec<Import>) {
    let tokens = match tokens {
        [a, b, rest @ ..] if is_punct(a, ':') && is_punct(b, ':') => rest,
        _ => tokens,
    };
    let Some(line) = tokens.first().map(|token| token.span().start().line) else { return };
    let (mut path, length) = path(tokens);
    path.line = line;
    path.segments.splice(0..0, prefix.iter().cloned());
    let mut rest = &tokens[length..];
    while let [a, next @ ..] = rest
        && is_punct(a, ':')
    {
        rest = next;
    }
    match rest {
        [TokenTree::Group(group), ..] => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            for tree in inner.split(|token| is_punct(token, ',')) {
                use_tree(tree, &path.segments, imports);
            }
        }
        [star, ..] if is_punct(star, '*') => imports.push(Import { name: "*".into(), path }),
        _ => {
            if path.segments.len() > 1 && path.segments.last().is_some_and(|last| last == "self") {
                path.segments.pop();
            }
            let alias = match rest {
                [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "as" => {
                    Some(plain(&name.to_string()))
                }
                _ => path.segments.last().cloned(),
            };
            imports.extend(alias.map(|name| Import { name, path }));
        }
    }
}

/// Whether an attribute limits its node to tests: `test`, `cfg(test)`, `cfg(all(test, ..))`.
fn for_tests(attribute: TokenStream) -> bool {
    let tokens: Vec<_> = attribute.into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(predicate)] if name == "cfg" => {
            needs_test(&predicate.stream().into_iter().collect::<Vec<_>>())
        }
        _ => false,
    }
}

fn needs_test(predicate: &[TokenTree]) -> bool {
    let parts = |group: &proc_macro2::Group| -> Vec<bool> {
        let tokens: Vec<_> = group.stream().into_iter().collect();
        tokens
            .split(|token| is_punct(token, ','))
            .filter(|part| !part.is_empty())
            .map(needs_test)
            .collect()
    };
    match predicate {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "all" => {
            parts(group).contains(&true)
        }
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "any" => {
            !parts(group).contains(&false)
        }
        _ => false,
    }
}

/// The number of tokens of a node: its attributes, then an item, a field, a variant or an arm.
fn node(tokens: &[TokenTree]) -> usize {
    let mut at = 0;
    while let [hash, TokenTree::Group(_), ..] = &tokens[at..]
        && is_punct(hash, '#')
    {
        at += 2;
    }
    if matches!(tokens.get(at), Some(TokenTree::Ident(word)) if word == "pub") {
        at += 1;
        at += usize::from(matches!(tokens.get(at), Some(TokenTree::Group(group))
            if group.delimiter() == Delimiter::Parenthesis));
    }
    // In an item a comma may separate parameters; elsewhere it is the end.
    let item = matches!(tokens.get(at), Some(TokenTree::Ident(word))
        if ITEMS.iter().any(|item| word == item));
    let end = tokens[at..].iter().position(|token| {
        is_punct(token, ';')
            || !item && is_punct(token, ',')
            || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
    });
    end.map_or(tokens.len(), |end| at + end + 1)
}

/// The paths in an attribute, including those in strings, as in `#[serde(with = "crate::hex")]`.
fn attribute_paths(attribute: TokenStream, module: &mut Module) {
    let tokens: Vec<_> = attribute.into_iter().collect();
    scan(&tokens, module);
    // The text of a doc comment is not code.
    if matches!(tokens.first(), Some(TokenTree::Ident(name)) if name == "doc") {
        return;
    }
    for token in tokens {
        match token {
            TokenTree::Group(group) => attribute_paths(group.stream(), module),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let inner: Vec<_> = text
                    .strip_prefix('"')
                    .and_then(|text| TokenStream::from_str(text.strip_suffix('"')?).ok())
                    .map(|tokens| tokens.into_iter().collect())
                    .unwrap_or_default();
                if let Some(TokenTree::Ident(_)) = inner.first() {
                    let (mut path, length) = path(&inner);
                    path.line = literal.span().start().line;
                    if length == inner.len() && path.segments.len() > 1 {
                        module.paths.push(path);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(text: &str) -> Vec<String> {
        let module = read(text).unwrap();
        module
            .imports
            .iter()
            .map(|import| {
                let Path { segments, line } = &import.path;
                format!("{line} {} = {}", import.name, segments.join("::"))
            })
            .collect()
    }

    fn paths(text: &str) -> Vec<String> {
        let module = read(text).unwrap();
        module
            .paths
            .iter()
            .map(|path| format!("{} {}", path.line, path.segments.join("::")))
            .collect()
    }

    #[test]
    fn nested_use_trees_over_several_lines() {
        assert_eq!(
            imports(
                "use crate::plan::{\n    self, Goal,\n    outcome::{Plan as Outcome, *},\n};\n\
                 pub(crate) use super::units;\n\
                 use {std::fmt, a::b as _};\n\
                 use ::netsilo_model as m;"
            ),
            [
                "2 plan = crate::plan",
                "2 Goal = crate::plan::Goal",
                "3 Outcome = crate::plan::outcome::Plan",
                "3 * = crate::plan::outcome",
                "5 units = super::units",
                "6 fmt = std::fmt",
                "6 _ = a::b",
                "7 m = netsilo_model",
            ]
        );
        assert_eq!(imports("fn f() { use crate::a::B; }"), ["1 B = crate::a::B"]);
        assert_eq!(
            imports("fn f<'a>(a: &'a u8) -> impl Sized + use<'a> { crate::a::b() }"),
            [""; 0]
        );
    }

    #[test]
    fn paths_in_code_types_macros_and_attributes() {
        assert_eq!(
            paths(
                "fn f(a: &crate::a::A) -> Vec<super::B> {\n\
                 let x = format!(\"{}\", self::c::d(..crate::e::E));\n\
                 <u8 as crate::t::T>::of::<v::W>(x.y::z())\n}\n\
                 #[serde(with = \"crate::hex\", rename = \"a b::c\")]\nstruct S;\n\
                 /// See crate::doc::D\nstruct R(u8);"
            ),
            [
                "1 crate::a::A",
                "1 super::B",
                "2 self::c::d",
                "2 crate::e::E",
                "3 crate::t::T",
                "3 v::W",
                "5 crate::hex",
            ]
        );
    }

    #[test]
    fn code_for_tests_is_left_out() {
        assert_eq!(
            paths(
                "#[cfg(test)]\nmod tests { fn f() { a::a(); } }\n\
                 #[cfg(test)] #[allow(x)] pub(crate) fn f<A, B>() -> [u8; 2] { b::b() }\n\
                 #[cfg(all(test, unix))] const C: u8 = c::c();\n\
                 #[test] fn t() { d::d() }\n\
                 struct S { #[cfg(test)] x: e::E, y: f::F }\n\
                 #[cfg(any(test, feature = \"x\"))] fn g() { g::g() }\n\
                 #[cfg(not(test))] fn h() { h::h() }"
            ),
            ["6 f::F", "7 g::g", "8 h::h"]
        );
        assert_eq!(imports("#[cfg(test)]\nuse crate::{a, b};\nuse crate::c;"), ["3 c = crate::c"]);
        let module = read("#[cfg(test)] mod tests;\nmod a;\npub mod r#b;").unwrap();
        assert_eq!(module.files, ["a", "b"]);
        assert_eq!(module.tests, ["tests"]);
    }

    #[test]
    fn modules_within_a_file_keep_their_own_imports() {
        let module = read("mod a { use super::b; pub mod c { mod d; } }").unwrap();
        assert_eq!(module.imports, []);
        let (name, a) = &module.inline[0];
        assert_eq!((name.as_str(), a.imports.len()), ("a", 1));
        assert_eq!(a.inline[0].1.files, ["d"]);
    }
}
