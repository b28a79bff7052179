use proptest::prelude::*;

use super::*;

#[test]
fn an_envelope_is_flags_length_and_json() {
    assert_eq!(&message(&serde_json::json!({"a": 1})).unwrap()[..], b"\0\0\0\0\x07{\"a\":1}");
    assert_eq!(&end(None)[..], b"\x02\0\0\0\x02{}");
    let error = CallError::new(Code::NotFound, "no such process");
    assert_eq!(&end(Some(error))[5..], br#"{"error":{"code":"not_found","message":"no such process"}}"#);
}

#[test]
fn every_code_is_written_as_it_is_named() {
    for code in Code::ALL {
        assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        assert!((400..600).contains(&code.http_status()), "{code}");
    }
}

#[test]
fn an_error_without_a_message_is_one() {
    let error: CallError = serde_json::from_str(r#"{"code":"internal","details":[]}"#).unwrap();
    assert_eq!(error, CallError::new(Code::Internal, ""));
}

#[test]
fn what_is_too_large_compressed_or_no_end_is_refused() {
    let refused = |bytes: &[u8]| {
        let mut decoder = Decoder::new(8);
        decoder.push(bytes);
        decoder.next_envelope().unwrap_err()
    };
    // Before its content arrives.
    assert_eq!(refused(b"\0\0\0\0\x09"), StreamError::TooLarge { bytes: 9, limit: 8 });
    assert_eq!(refused(b"\x01\0\0\0\x02{}"), StreamError::Compressed);
    assert!(matches!(refused(b"\x02\0\0\0\x01x"), StreamError::End { .. }));
}

proptest! {
    #[test]
    fn a_stream_is_the_same_however_it_is_cut(
        texts in proptest::collection::vec(".{0,40}", 0..6),
        cuts in proptest::collection::vec(1usize..9, 0..200),
    ) {
        let mut sent = Vec::new();
        for text in &texts {
            sent.extend_from_slice(&message(text).unwrap());
        }
        sent.extend_from_slice(&end(None));
        let mut decoder = Decoder::new(1024);
        let mut found = Vec::new();
        let mut cuts = cuts.into_iter().chain(std::iter::repeat(1024));
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            rest = more;
            decoder.push(piece);
            while let Some(envelope) = decoder.next_envelope().unwrap() {
                found.push(envelope);
            }
        }
        prop_assert!(!decoder.is_partial());
        prop_assert_eq!(found.pop(), Some(Envelope::End(EndOfStream::default())));
        let read: Vec<String> = found
            .iter()
            .map(|envelope| match envelope {
                Envelope::Message(json) => serde_json::from_slice(json).unwrap(),
                Envelope::End(_) => unreachable!("only the last is an end"),
            })
            .collect();
        prop_assert_eq!(read, texts);
    }
}
