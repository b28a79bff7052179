//! Workspace files as resources: listed by the page, read as text where they are text, in parts where they are
//! large.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::ErrorData;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use sandcrate_host::{FileKind, HostError};
use sandcrate_protocol::ErrorKind;
use serde_json::json;

use super::{Boxes, page, uri};

/// Of a file in one answer; the rest has addresses of its own.
const PART_BYTES: u64 = 256 << 10;

pub(super) async fn list(
    boxes: &dyn Boxes,
    session: &str,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, ErrorData> {
    if let Some(cursor) = cursor {
        let unknown =
            |why| ErrorData::invalid_params(format!("the cursor {why}; take the one of the last page"), None);
        uri::check_relative(cursor).map_err(unknown)?;
    }
    let page = page::after(boxes, session, cursor).await.map_err(|error| protocol_error(&error))?;
    let resource = |file: page::Listed| {
        let name = file.relative.rsplit('/').next().unwrap_or_default().to_owned();
        Resource::new(uri::of(session, &file.relative), name)
            .with_title(file.relative.clone())
            .with_mime_type(mime_type(&file.relative))
            .with_size(file.size)
    };
    let mut result = ListResourcesResult::with_all_items(page.files.into_iter().map(resource).collect());
    result.next_cursor = page.next;
    Ok(result)
}

pub(super) fn templates(session: &str) -> ListResourceTemplatesResult {
    let file = ResourceTemplate::new(uri::template(session), "workspace file").with_description(
        "Any file of the workspace by its path, also those in directories that the list leaves out because their \
         name begins with a dot. `?offset=N` reads on from a byte.",
    );
    ListResourceTemplatesResult::with_all_items(vec![file])
}

pub(super) async fn read(
    boxes: &dyn Boxes,
    session: &str,
    given: &str,
) -> Result<ReadResourceResult, ErrorData> {
    let place = uri::parse(given).map_err(|error| protocol_error(&error))?;
    let absent = |why: &str| ErrorData::resource_not_found(why.to_owned(), Some(json!({"uri": given})));
    if place.session != session {
        return Err(absent(
            "this connection has another session; its files begin with the uri of its template",
        ));
    }
    let path = place.path();
    let found = boxes.stat(session, &path).await.map_err(|error| read_error(&error, given))?;
    match found.map(|meta| meta.kind) {
        Some(FileKind::File) => {}
        Some(FileKind::Directory) => return Err(absent("it is a directory; resources/list has its files")),
        Some(FileKind::Symlink | FileKind::Other) => return Err(absent("it is not a regular file")),
        None => return Err(absent("there is no such file in the workspace")),
    }
    let part = boxes.read(session, &path, place.offset, PART_BYTES).await;
    let (mut bytes, size) = part.map_err(|error| read_error(&error, given))?;
    let is_rest = place.offset + bytes.len() as u64 >= size;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => Some(text.to_owned()),
        // A character that the end of the part went through comes with the next one.
        Err(error) if error.error_len().is_none() && !is_rest && error.valid_up_to() > 0 => {
            bytes.truncate(error.valid_up_to());
            std::str::from_utf8(&bytes).ok().map(str::to_owned)
        }
        Err(_) => None,
    };
    let end = place.offset + bytes.len() as u64;
    let contents = match text {
        Some(text) => ResourceContents::text(text, given).with_mime_type(mime_type(&place.relative)),
        None => ResourceContents::blob(STANDARD.encode(&bytes), given)
            .with_mime_type(binary_type(&place.relative)),
    };
    let mut facts = json!({"sandcrate/size": size, "sandcrate/offset": place.offset});
    if end < size && !bytes.is_empty() {
        facts["sandcrate/next"] = json!(uri::from_offset(given, end));
    }
    let meta: Option<MetaObject> = serde_json::from_value(facts).ok();
    Ok(ReadResourceResult::new(vec![match meta {
        Some(meta) => contents.with_meta(meta),
        None => contents,
    }]))
}

/// A request for what cannot be given: there is no result to put it in.
pub(super) fn protocol_error(error: &HostError) -> ErrorData {
    match error.kind {
        ErrorKind::Validation => ErrorData::invalid_params(error.message.clone(), None),
        _ => ErrorData::internal_error(error.message.clone(), Some(json!({"kind": error.kind}))),
    }
}

fn read_error(error: &HostError, given: &str) -> ErrorData {
    match error.kind {
        ErrorKind::FileNotFound | ErrorKind::FileFailed | ErrorKind::SessionNotFound => {
            ErrorData::resource_not_found(error.message.clone(), Some(json!({"uri": given})))
        }
        _ => protocol_error(error),
    }
}

/// By the name, for what clients show in another way than as plain text.
fn mime_type(relative: &str) -> &'static str {
    match extension(relative).as_str() {
        "md" => "text/markdown",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "csv" => "text/csv",
        "js" | "mjs" => "text/javascript",
        "json" => "application/json",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        extension => known_binary(extension).unwrap_or("text/plain"),
    }
}

fn binary_type(relative: &str) -> &'static str {
    known_binary(&extension(relative)).unwrap_or("application/octet-stream")
}

fn known_binary(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        _ => return None,
    })
}

fn extension(relative: &str) -> String {
    let name = relative.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;

    use super::*;
    use crate::box_server::fake::FakeBoxes;

    async fn one(boxes: &FakeBoxes, uri: &str) -> Result<serde_json::Value, ErrorData> {
        let result = read(boxes, "s", uri).await?;
        Ok(serde_json::to_value(&result.contents[0]).unwrap())
    }

    #[tokio::test]
    async fn files_are_listed_with_their_kind_and_size() {
        let boxes = FakeBoxes::new();
        boxes.put("/workspace/src/main.py", b"print(1)");
        boxes.put("/workspace/a b.png", b"\x89PNG\xff");
        let listed = list(&boxes, "s", None).await.unwrap();
        let found: Vec<_> = listed
            .resources
            .iter()
            .map(|file| {
                (file.uri.as_str(), file.name.as_str(), file.mime_type.as_deref().unwrap(), file.size)
            })
            .collect();
        assert_eq!(
            found,
            [
                ("sandcrate://s/workspace/a%20b.png", "a b.png", "image/png", Some(5)),
                ("sandcrate://s/workspace/src/main.py", "main.py", "text/plain", Some(8)),
            ]
        );
        assert_eq!(listed.next_cursor, None);
        let refused = list(&boxes, "s", Some("../x")).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::INVALID_PARAMS);
        assert!(
            templates("a b").resource_templates[0].uri_template.starts_with("sandcrate://a%20b/workspace/{+")
        );
    }

    #[tokio::test]
    async fn text_is_text_and_the_rest_is_a_blob() {
        let boxes = FakeBoxes::new();
        boxes.put("/workspace/a.json", "{\"ä\": 1}".as_bytes());
        boxes.put("/workspace/b", b"\xff\xfe");
        let text = one(&boxes, "sandcrate://s/workspace/a.json").await.unwrap();
        assert_eq!((&text["text"], &text["mimeType"]), (&json!("{\"ä\": 1}"), &json!("application/json")));
        let blob = one(&boxes, "sandcrate://s/workspace/b").await.unwrap();
        assert_eq!((&blob["blob"], &blob["mimeType"]), (&json!("//4="), &json!("application/octet-stream")));
    }

    #[tokio::test]
    async fn a_large_file_comes_in_parts_that_join_without_a_seam() {
        let boxes = FakeBoxes::new();
        let whole = format!("x{}", "ä".repeat(300 << 10));
        boxes.put("/workspace/big.txt", whole.as_bytes());
        let (mut joined, mut next, mut parts) =
            (String::new(), Some("sandcrate://s/workspace/big.txt".to_owned()), 0);
        while let Some(uri) = next {
            let part = one(&boxes, &uri).await.unwrap();
            joined.push_str(part["text"].as_str().unwrap());
            assert_eq!(part["_meta"]["sandcrate/size"], whole.len());
            next = part["_meta"]["sandcrate/next"].as_str().map(str::to_owned);
            parts += 1;
        }
        assert_eq!((joined == whole, parts), (true, 3));
    }

    #[tokio::test]
    async fn what_is_not_there_or_not_ours_is_not_found() {
        let boxes = FakeBoxes::new();
        boxes.put("/workspace/d/x", b"x");
        for uri in
            ["sandcrate://s/workspace/none", "sandcrate://s/workspace/d", "sandcrate://other/workspace/d/x"]
        {
            assert_eq!(one(&boxes, uri).await.unwrap_err().code, ErrorCode::RESOURCE_NOT_FOUND, "{uri}");
        }
        assert_eq!(one(&boxes, "file:///etc/passwd").await.unwrap_err().code, ErrorCode::INVALID_PARAMS);
    }
}
