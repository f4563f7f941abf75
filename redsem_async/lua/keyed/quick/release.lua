-- quick release, with keys: give permits back that no request waits for, with the fewest commands.
--
-- The result is that of release. The quick path is taken when all of this is true:
--
--   1. what quick release without keys asks for: its 1 to 4
--   2. `keys` says the key of each id
--   3. if requests wait: what quick acquire asks for, its 3 and 5, and no holder has expired
--
-- RETURNS  {tag}: all were held; or as release does
-- USES     now, mark, keys, PARKED, queue_is_settled

local shares = string.find(mode, 'share', 1, true)

local function give_back_all()
  if ARGV[5] ~= hub or ARGV[6] ~= '' or call('EXISTS', extra) > 0 then return end
  local waiting = call('ZCARD', queue)
  local used = waiting > 0 and call('ZCARD', holders)
  if waiting > 0 and (not queue_is_settled(used) or call('ZCOUNT', holders, '-inf', now) > 0 or
      call('ZCARD', keys) ~= used + waiting + call('ZLEXCOUNT', keys, '[u:', '(w')) then
    return
  end
  local ids, texts, uses, highest = {}, {}, {}, 0
  for i = 8, #ARGV do
    local number = tonumber(ARGV[i])
    if number <= highest or number > mark then return end
    highest = number
    ids[i - 7] = hub .. '.' .. ARGV[i]
  end
  for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if not expiry or tonumber(expiry) <= now then return end
    local first = 'i:' .. ids[i]
    local text = call('ZRANGEBYLEX', keys, '[' .. first .. ':', '(' .. first .. ';', 'LIMIT', 0, 1)[1]
    local key = text and string.match(text, '^i:[^:]*:1:(.*)$')
    if not key then return end
    texts[#texts + 1] = text
    if call('ZLEXCOUNT', keys, '[l:' .. key .. '!', '(l:' .. key .. '"') > 0 then return end
    if key ~= '' then
      uses[key] = 'u:' .. key .. '!00:'
      texts[#texts + 1] = uses[key] .. ids[i]
    end
  end
  -- The first write can fail, because the script has not read this key: nothing is written then.
  call('HDEL', tokens, unpack(ids))
  call('ZREM', holders, unpack(ids))
  call('ZREM', keys, unpack(texts))
  for key, use in pairs(uses) do  -- a key that neither holds nor waits has no virtual time
    if shares and call('ZLEXCOUNT', keys, '[' .. use, '(u:' .. key .. '!00;') == 0 then
      for _, text in ipairs(call('ZRANGEBYLEX', keys, '[v:' .. key .. '!', '(v:' .. key .. '"')) do
        call('ZREM', keys, text)
      end
    end
  end
  if waiting == 0 or ARGV[7] == '' then return { tag } end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  waiting = waiting - call('ZCOUNT', queue, '-inf', string.format('(%.0f', -PARKED))
  local reply = { tag, first and first - now or -1, waiting, {} }
  for i = 1, #ids do reply[4 + i] = 1 end
  return reply
end

local reply = give_back_all()
if reply then return reply end
