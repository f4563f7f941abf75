-- quick release: give back permits of the caller's hub, with the fewest commands.
--
-- The result is that of release. The quick path is taken when all of this is true, which the script
-- tests in this order:
--
--   1. the ids are of the caller's hub, and the call tells no hold
--   2. there is no grace period
--   3. no holder is heavy, and the queue is empty
--   4. every number is higher than the one before it, so that none occurs twice, and has been used
--   5. every id holds a permit
--
-- RETURNS  {tag}: all were held
-- USES     grace, now, mark

local function give_back_all()
  if ARGV[5] ~= hub or ARGV[6] ~= '' or grace > now or call('EXISTS', extra, queue) > 0 then return end
  local ids, highest = {}, 0
  for i = 7, #ARGV do
    local number = tonumber(ARGV[i])
    if number <= highest or number > mark then return end
    highest = number
    ids[i - 6] = hub .. '.' .. ARGV[i]
  end
  for _, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if not expiry or tonumber(expiry) <= now then return end
  end
  -- The first write can fail, because the script has not read this key: nothing is written then.
  call('HDEL', tokens, unpack(ids))
  call('ZREM', holders, unpack(ids))
  return { tag }
end

local reply = give_back_all()
if reply then return reply end
