//! `/sys/kernel/btf/*`: the values of enums. The BTF of a module continues that of vmlinux.

use std::ffi::CStr;

/// Values and names of the enums whose names end with `end`. `base` is the BTF of vmlinux if `btf`
/// is that of a module. `None` if it is no BTF.
pub fn enum_values(btf: &[u8], base: Option<&[u8]>, end: &str) -> Option<Vec<(u32, String)>> {
    let (mut types, strings) = sections(btf)?;
    let base = base.map_or(Some(&[][..]), |base| Some(sections(base)?.1))?;
    let name = |offset: u32| {
        let offset = offset as usize;
        let text = match offset.checked_sub(base.len()) {
            Some(own) => strings.get(own..)?,
            None => base.get(offset..)?,
        };
        CStr::from_bytes_until_nul(text).ok()?.to_str().ok()
    };
    let mut values = Vec::new();
    while let (Some(own), Some(info)) = (word(types, 0), word(types, 1)) {
        let (kind, members) = (info >> 24 & 0x7f, (info & 0xff_ffff) as usize);
        // `struct btf_type`, and what follows each kind (Documentation/bpf/btf.rst)
        let bytes = 12
            + match kind {
                // int, var, declaration tag
                1 | 14 | 17 => 4,
                // array
                3 => 12,
                // struct, union, data section, 64-bit enum
                4 | 5 | 15 | 19 => 12 * members,
                // enum, prototype of a function
                ENUM | 13 => 8 * members,
                2 | 7..=12 | 16 | 18 => 0,
                // Of a kind that is not known yet, the size is not known.
                _ => break,
            };
        if kind == ENUM && name(own).is_some_and(|name| name.ends_with(end)) {
            let member = |at: usize| {
                Some((word(types, 4 + 2 * at)?, name(word(types, 3 + 2 * at)?)?.to_owned()))
            };
            values.extend((0..members).map_while(member));
        }
        types = types.get(bytes..).unwrap_or_default();
    }
    Some(values)
}

/// `BTF_KIND_ENUM`.
const ENUM: u32 = 6;

/// The types and the strings (`struct btf_header`).
fn sections(btf: &[u8]) -> Option<(&[u8], &[u8])> {
    let magic = u16::from_ne_bytes(*btf.first_chunk()?);
    let section = |at: usize| {
        let start = (word(btf, 1)? as usize).checked_add(word(btf, at)? as usize)?;
        btf.get(start..start.checked_add(word(btf, at + 1)? as usize)?)
    };
    (magic == 0xeb9f).then_some((section(2)?, section(4)?))
}

/// The word with this number.
fn word(bytes: &[u8], number: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(4 * number..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BTF of these words of types and these strings.
    fn btf(types: &[u32], strings: &str) -> Vec<u8> {
        let lengths = [4 * types.len() as u32, strings.len() as u32];
        let header = [0x1_eb9f, 24, 0, lengths[0], lengths[0], lengths[1]];
        let words = header.iter().chain(types).flat_map(|word| word.to_ne_bytes());
        words.chain(strings.bytes()).collect()
    }

    #[test]
    fn values_of_enums_are_found_by_the_end_of_the_enums_name() {
        let [int, array, structure, enumeration] = [1, 3, 4, ENUM].map(|kind| kind << 24);
        let strings = "\0skb_drop_reason\0NO_SOCKET\0other\0";
        let types = [
            &[17, int, 4, 32][..],
            &[0, array, 0, 1, 1, 3],
            &[0, structure | 1, 4, 0, 1, 0],
            &[1, enumeration | 1, 4, 17, 3],
            &[27, enumeration | 1, 4, 17, 9],
        ];
        let vmlinux = btf(&types.concat(), strings);
        let found = |btf: &[u8], base| enum_values(btf, base, "drop_reason");
        assert_eq!(found(&vmlinux, None), Some(vec![(3, "NO_SOCKET".into())]));
        let of_module = "ovs_drop_reason\0OVS_DROP_METER\0";
        let start = strings.len() as u32;
        let of_module = btf(&[start, enumeration | 2, 4, start + 16, 0x30005, 17, 7], of_module);
        let values = vec![(0x30005, "OVS_DROP_METER".into()), (7, "NO_SOCKET".into())];
        assert_eq!(found(&of_module, Some(&vmlinux)), Some(values));
        for bytes in 0..of_module.len() {
            found(&of_module[..bytes], Some(&vmlinux));
        }
        assert_eq!(found(b"\x7fELF", None), None);
    }
}
