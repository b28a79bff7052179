use std::convert::Infallible;

use futures_util::stream;

use super::*;

/// Every part with its content, of a body that arrives in pieces of this size.
async fn parts(body: &str, size: usize) -> Result<Vec<(Part, String)>, MultipartError> {
    let pieces: Vec<_> = body
        .as_bytes()
        .chunks(size)
        .map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece)))
        .collect();
    let mut form = Multipart::new(stream::iter(pieces), "B");
    let mut found = Vec::new();
    while let Some(part) = form.next_part().await? {
        let mut content = Vec::new();
        while let Some(piece) = form.next_piece().await? {
            content.extend_from_slice(&piece);
        }
        found.push((part, String::from_utf8(content).unwrap()));
    }
    Ok(found)
}

fn file(name: &str) -> Part {
    Part { name: "file".to_owned(), filename: Some(name.to_owned()) }
}

#[tokio::test]
async fn a_form_is_the_same_however_it_is_cut() {
    let body = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a/b c.txt\"\r\n\
                Content-Type: text/plain\r\n\r\none\r\n--not\r\n\r\n--B\r\n\
                content-disposition: form-data; name=file; filename=\"empty\"\r\n\r\n\r\n--B\r\n\
                Content-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n--Almost\r\n--B--\r\n";
    let expected = vec![
        (file("/a/b c.txt"), "one\r\n--not\r\n".to_owned()),
        (file("empty"), String::new()),
        (file("x"), "--Almost".to_owned()),
    ];
    for size in [1, 2, 3, 7, 64, 4096] {
        assert_eq!(parts(body, size).await.unwrap(), expected, "pieces of {size}");
    }
}

#[tokio::test]
async fn what_is_no_form_is_refused() {
    let head = "--B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n";
    assert_eq!(parts(&format!("{head}abc"), 4).await, Err(MultipartError::Cut));
    assert_eq!(parts("", 4).await, Err(MultipartError::Cut));
    assert_eq!(parts("--B\r\nnonsense\r\n\r\nx\r\n--B--", 4).await, Err(MultipartError::Head));
    assert_eq!(
        parts(&format!("--B\r\n{}", "h".repeat(MAX_HEAD_BYTES + 9)), 512).await,
        Err(MultipartError::Head)
    );
}

#[test]
fn names_are_read_as_clients_escape_them() {
    let named = |text: &str| {
        read_head(format!("Content-Disposition: form-data; name=\"file\"; {text}\r\n").as_bytes())
            .unwrap()
            .filename
            .unwrap()
    };
    assert_eq!(named(r#"filename="a\"b\\c""#), r#"a"b\c"#);
    assert_eq!(named(r#"filename="a%22b%0A""#), "a\"b\n");
    assert_eq!(named("filename=plain"), "plain");
    assert_eq!(named("filename=\"x\"; filename*=UTF-8''%C3%A4%20b"), "ä b");
    assert_eq!(named("filename=\"日本;=.txt\""), "日本;=.txt");
}

#[test]
fn only_a_form_has_a_boundary() {
    assert_eq!(boundary("multipart/form-data; boundary=abc"), Some(Ok("abc".to_owned())));
    assert_eq!(boundary("Multipart/Form-Data; x=y; boundary=\"a b\""), Some(Ok("a b".to_owned())));
    assert_eq!(boundary("multipart/form-data"), Some(Err(MultipartError::Boundary)));
    assert_eq!(boundary("application/octet-stream"), None);
}
