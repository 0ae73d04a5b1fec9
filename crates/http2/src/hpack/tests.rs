//! Tests the examples of RFC 7541, appendix C, and refusals.

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn decode(decoder: &mut Decoder, hex: &str) -> Result<Vec<String>, BadBlock> {
    let mut fields = Vec::new();
    decoder.decode(&bytes(hex), 10_000, |name, value| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        fields.push(format!("{}={}", text(name), text(value)));
    })?;
    Ok(fields)
}

#[test]
fn literals_c_2() {
    let mut d = Decoder::new();
    let custom = decode(
        &mut d,
        "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
    );
    assert_eq!(custom.unwrap(), ["custom-key=custom-header"]);
    assert_eq!(d.dynamic.size(), 55);
    let path = decode(&mut d, "040c 2f73 616d 706c 652f 7061 7468");
    assert_eq!(path.unwrap(), [":path=/sample/path"]);
    let secret = decode(&mut d, "1008 7061 7373 776f 7264 0673 6563 7265 74");
    assert_eq!(secret.unwrap(), ["password=secret"]);
    assert_eq!(decode(&mut d, "82").unwrap(), [":method=GET"]);
}

/// C.3 without and C.4 with the Huffman code: three requests on one connection.
#[test]
fn requests_c_3_and_c_4() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for requests in [plain, huffman] {
        let mut d = Decoder::new();
        assert_eq!(
            decode(&mut d, requests[0]).unwrap(),
            [
                ":method=GET",
                ":scheme=http",
                ":path=/",
                ":authority=www.example.com"
            ]
        );
        assert_eq!(d.dynamic.size(), 57);
        assert_eq!(
            decode(&mut d, requests[1]).unwrap()[3..],
            [":authority=www.example.com", "cache-control=no-cache"]
        );
        assert_eq!(d.dynamic.size(), 110);
        assert_eq!(
            decode(&mut d, requests[2]).unwrap(),
            [
                ":method=GET",
                ":scheme=https",
                ":path=/index.html",
                ":authority=www.example.com",
                "custom-key=custom-value"
            ]
        );
        assert_eq!(d.dynamic.size(), 164);
    }
}

/// C.6: responses with a table of 256 bytes, so that entries are evicted.
#[test]
fn responses_c_6() {
    let mut d = Decoder::new();
    d.dynamic.resize(256);
    let first = decode(
        &mut d,
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e
         919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
    );
    let date = "date=Mon, 21 Oct 2013 20:13:21 GMT";
    let location = "location=https://www.example.com";
    assert_eq!(
        first.unwrap(),
        [":status=302", "cache-control=private", date, location]
    );
    assert_eq!(d.dynamic.size(), 222);
    let second = decode(&mut d, "4883 640e ffc1 c0bf");
    assert_eq!(
        second.unwrap(),
        [":status=307", "cache-control=private", date, location]
    );
    assert_eq!(d.dynamic.size(), 222);
    let third = decode(
        &mut d,
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7
         821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed
         4ee5 b106 3d50 07",
    );
    let third = third.unwrap();
    assert_eq!(third[..2], [":status=200", "cache-control=private"]);
    assert_eq!(third[4], "content-encoding=gzip");
    assert!(third[5].starts_with("set-cookie=foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600"));
    assert_eq!(d.dynamic.size(), 215);
}

#[test]
fn what_is_refused() {
    for bad in [
        "80",              // index 0
        "be",              // beyond the tables
        "ff ffff ffff ff", // an integer without end
        "82 20",           // a resize after a field
        "20 20 20",        // three of them
        "3f e2 1f",        // a table larger than 4096
        "40",              // no name
        "4003 61",         // a name that is cut
        "0081 ff 00",      // a name that is all padding
    ] {
        assert_eq!(decode(&mut Decoder::new(), bad), Err(BadBlock), "{bad}");
    }
    assert!(decode(&mut Decoder::new(), "3fe11f 20 82").is_ok()); // 4096, then 0
}

#[test]
fn what_is_encoded_is_decoded() {
    let fields: [(&[u8], &[u8]); 9] = [
        (b":status", b"200"),
        (b":status", b"201"),
        (b":status", b"500"),
        (b":path", b"/"),
        (b":path", b"/x"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"cookie", b"a=b"),
        (b"x-long", &[b'y'; 5000]),
        (b"empty", b""),
    ];
    let mut block = vec![NO_TABLE];
    for (name, value) in fields {
        encode(name, value, &mut block);
    }
    let mut decoded = Vec::new();
    Decoder::new()
        .decode(&block, 10_000, |n, v| {
            decoded.push((n.to_vec(), v.to_vec()))
        })
        .unwrap();
    let expected: Vec<_> = fields
        .iter()
        .map(|(n, v)| (n.to_vec(), v.to_vec()))
        .collect();
    assert_eq!(decoded, expected);
    assert_eq!(block[1], 0x88, ":status 200 is one byte");
    for (index, (name, _)) in STATIC.iter().enumerate() {
        let found = name_index(name);
        assert!(found == 0 || STATIC[found - 1].0 == *name, "{index}");
        assert!(found <= index + 1);
    }
}
